"""Networks of many outputs: the variances of each alone, and a curvature that is drawn or keeps few together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.curvature.kfac import KroneckerSum
from lapwing.curvature.propagation import Propagation
from lapwing.ground import progress
from lapwing.ground.errors import UnsupportedError
from lapwing.posteriors import WeightPosterior
from lapwing.predictive import Moments, WideMoments
from lapwing.structures.selection import Selection
from tests.posterior_cases import STRUCTURES, Linearised, limited, problem, refused


@pytest.mark.parametrize("structure", ["full-weights", "diagonal", "kfac", "kfac-reduce-separate"])
@pytest.mark.parametrize(
    "name",
    ["categorical", "heteroscedastic", "bernoulli", "poisson", "negative-binomial", "student-t", "tokens", "pixels"],
)
def test_many_outputs_have_the_variances_of_few(name: str, structure: str) -> None:
    case = problem(name)
    recipe = lw.Laplace(case.likelihood, structure=STRUCTURES[structure], weights=lw.LastLayer())
    posterior = case.fit(recipe)
    plain = replace(posterior, model=replace(posterior.model, survey=replace(posterior.survey, head=False)))
    expected, found = plain.outputs(case.new), posterior.outputs(case.new)
    torch.testing.assert_close(found.covariance, expected.covariance, rtol=1e-10, atol=1e-14)
    posterior = limited(posterior, joint_outputs=1)
    plain = limited(plain, joint_outputs=1)
    wide = posterior.outputs(case.new)
    assert isinstance(wide, Moments if structure == "full-weights" else WideMoments)
    torch.testing.assert_close(wide.variance, expected.variance, rtol=1e-8, atol=1e-14)
    torch.testing.assert_close(wide.covariance, expected.covariance, rtol=1e-8, atol=1e-14)
    assert torch.equal(wide.mean, expected.mean)
    for link in ("probit", "mc", "pairwise", "qmc"):
        one, other = (
            each.predict(case.new, link, generator=torch.Generator().manual_seed(0)) for each in (posterior, plain)
        )
        found_mean, expected_mean = (each.probs if hasattr(each, "probs") else each.mean for each in (one, other))
        near = {"mc": {"rtol": 0.2, "atol": 0.05}, "qmc": {"rtol": 0.0, "atol": 0.01}}  # other points of other roots
        torch.testing.assert_close(found_mean, expected_mean, **near.get(link, {"rtol": 1e-8, "atol": 1e-12}))


def test_draws_of_many_outputs_have_their_covariance() -> None:
    case = problem("categorical")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.KFAC(), weights=lw.LastLayer()))
    wide = limited(posterior, joint_outputs=1).outputs(case.new)
    drawn = wide.sample(20_000, generator=torch.Generator().manual_seed(0)) - wide.mean
    found = torch.einsum("sni,snj->nij", drawn, drawn) / len(drawn)
    torch.testing.assert_close(found, wide.covariance, rtol=0.1, atol=0.05 * float(wide.variance.max()))


@pytest.mark.parametrize("structure", ["diagonal", "kfac"])
def test_many_outputs_are_tuned_by_their_variances(structure: str) -> None:
    case = problem("categorical")
    recipe = lw.Laplace(case.likelihood, structure=STRUCTURES[structure], weights=lw.LastLayer())
    expected = lw.tune(case.fit(recipe), lw.Validation((case.x, case.y), link="probit"))
    posterior = recipe.structure.fit(case.task(recipe, joint_outputs=1))
    assert posterior.link == "probit"
    tuned = lw.tune(posterior, lw.Validation((case.x, case.y)))
    assert tuned.link == "probit"
    assert tuned.prior.precision == pytest.approx(expected.prior.precision, rel=1e-6)


def test_many_outputs_of_few_drawn_labels() -> None:
    """Their gradients span less than half of the outputs: the factor is held in low rank."""
    model = nn.Linear(3, 9).double()
    x, y = torch.randn(2, 3, dtype=torch.float64), torch.tensor([4, 0])
    recipe = lw.Laplace(lw.Categorical(), structure=lw.KFAC(), curvature=lw.MCFisher())
    posterior = recipe.fit(model, (x, y), generator=torch.Generator().manual_seed(0))
    assert posterior.curvature.operator.blocks[0].bases[0].others
    expected = posterior.outputs(x)
    wide = limited(posterior, joint_outputs=1).outputs(x)
    torch.testing.assert_close(wide.covariance, expected.covariance, rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize("selection", [lw.LastLayer(), lw.All()], ids=repr)
@pytest.mark.parametrize("structure", ["full-weights", "diagonal", "kfac"])
def test_outputs_at_some_positions_are_those_of_all(structure: str, selection: Selection) -> None:
    case, places = problem("pixels"), torch.tensor([4, 1])
    fitted = case.fit(lw.Laplace(case.likelihood, structure=STRUCTURES[structure], weights=selection))
    assert isinstance(fitted, WeightPosterior)
    for joint in (256, 1):
        posterior = limited(fitted, joint_outputs=joint)
        (whole,), (some,) = (
            posterior.outputs_each(case.new, [posterior]),
            posterior.outputs_at(case.new, places, [posterior]),
        )
        torch.testing.assert_close(some.mean, whole.mean.flatten(1, 2)[:, places])
        torch.testing.assert_close(some.covariance, whole.covariance.flatten(1, 2)[:, places], rtol=1e-10, atol=1e-14)


def test_pixels_pulled_back_one_by_one_are_said_to_take_as_long_as_those_of_the_crop_will(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, generator: torch.Generator
) -> None:
    now = [0.0]
    covariances = Propagation.covariances

    def slow(*arguments: Any) -> list[torch.Tensor]:
        now[0] += 5.0
        return covariances(*arguments)

    monkeypatch.setattr(Propagation, "covariances", slow)
    monkeypatch.setattr(progress, "clock", lambda: now[0])
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 3, 1)).double()
    x = torch.randn(4, 1, 7, 9, dtype=torch.float64, generator=generator)
    y = torch.randint(3, (4, 7, 9), generator=generator)
    for weights, said in ((lw.All(), ["20"]), (lw.LastLayer(), [])):
        recipe = lw.Laplace(lw.Categorical(event_dim=2, class_dim=1), structure=lw.KFAC(), weights=weights)
        posterior = recipe.fit(model, (x, y))
        caplog.clear()
        posterior.predict(x[:, :, :2, :3])
        seconds = [words.split("about ")[1].split(" s more, for 16 of 24")[0] for words in caplog.messages]
        assert seconds == said and caplog.text.count("LastLayer()") == len(said)


@pytest.mark.parametrize("structure", ["diagonal", "kfac"])
def test_of_many_positions_the_curvature_is_drawn(structure: str, caplog: pytest.LogCaptureFixture) -> None:
    case = problem("pixels")
    recipe = lw.Laplace(case.likelihood, structure=STRUCTURES[structure])
    every = case.fit(recipe)
    with caplog.at_level("INFO", "lapwing"):
        tasks = [case.task(recipe).affordable(exact=17, cheap=17, draws=1000) for _ in range(2)]
    drawn, again = (recipe.structure.fit(task) for task in tasks)
    assert "18 outputs an example: the curvature from 1000 draws" in caplog.text
    one, other = (each.precision_operator.dense() for each in (drawn, every))
    torch.testing.assert_close(one, other, rtol=0.1, atol=0.04 * float(other.diagonal().max()))
    assert torch.equal(one, again.precision_operator.dense()) and not torch.equal(one, other)
    exactly = replace(recipe, curvature=lw.GGN(exact=True))
    asked = recipe.structure.fit(case.task(exactly).affordable(exact=17, cheap=17, draws=1000))
    assert torch.equal(asked.precision_operator.dense(), other)


@pytest.mark.parametrize("name", ["categorical", "bernoulli", "tokens"])
def test_of_very_many_outputs_few_are_kept_together(name: str, caplog: pytest.LogCaptureFixture) -> None:
    case = problem(name)
    recipe = lw.Laplace(case.likelihood, structure=lw.KFAC(), weights=lw.LastLayer())
    whole = case.fit(recipe).precision_operator.dense()
    task = case.task(recipe, joint_outputs=1)
    total = KroneckerSum(task.model.network, together=2 if name != "bernoulli" else 1)
    with caplog.at_level("INFO", "lapwing"):
        posterior = task.summed(total)
    c = posterior.model.event[-1]
    of = torch.cat([torch.arange(c).repeat_interleave((posterior.network.size - c) // c), torch.arange(c)])
    curvature = whole - torch.eye(len(whole)).to(whole)
    most = torch.stack([curvature.diagonal()[of == j].sum() for j in range(c)]).topk(2).indices
    kept = torch.isin(of, most if name != "bernoulli" else most[:0])
    expected = torch.where((of[:, None] == of) | (kept[:, None] & kept), whole, 0.0)
    torch.testing.assert_close(posterior.precision_operator.dense(), expected, rtol=1e-10, atol=1e-12)
    joint = Linearised(case, posterior.network).joint_covariance(expected)
    found = posterior.outputs(case.new)
    torch.testing.assert_close(
        found.variance.flatten(), joint.reshape(found.mean.numel(), -1).diagonal(), rtol=1e-8, atol=1e-12
    )
    assert f"of {c} outputs the {2 if name != 'bernoulli' else 0} of most curvature" in caplog.text
    if name != "bernoulli":
        beside = curvature[-c:, -c:].abs().fill_diagonal_(0.0)  # of the biases, which sees the output Hessian alone
        assert (
            f"{100 * float(beside[most][:, most].sum() / beside.sum()):.3g} % of the curvature between" in caplog.text
        )
        with refused(UnsupportedError, "joint"):
            posterior.predict(case.new, joint=True)
