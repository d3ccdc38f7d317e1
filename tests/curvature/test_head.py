"""A layer whose outputs are the network's: what needs no gradient equals what the gradients of every output give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.curvature import ggn, outputs
from lapwing.curvature.ggn import GGN, Accumulator, EmpiricalFisher, sweep
from lapwing.curvature.kfac import KroneckerSum
from lapwing.curvature.sums import DenseSum, DiagonalSum
from lapwing.ground.data import Data
from lapwing.ground.errors import UnsupportedError
from lapwing.jacobian import model as jacobian_model
from lapwing.jacobian.model import Model, Pass
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.survey import surveyed
from lapwing.likelihoods import base
from lapwing.posteriors import WeightPosterior, exact
from lapwing.predictive import Moments, WideMoments
from lapwing.structures import summed
from lapwing.structures.selection import Selection
from tests.posterior_cases import PROBLEMS, STRUCTURES, Linearised, problem, refused, seeded

SUMS: dict[str, Callable[[Network], Accumulator]] = {
    "diagonal": DiagonalSum,
    "dense": DenseSum,
    "kfac": KroneckerSum,
    "kfac-reduce-separate": lambda network: KroneckerSum(network, "reduce", "separate"),
}


def given(name: str, weights: Selection | None = None) -> Model:
    """The model of a problem whose last layer alone is uncertain, its likelihood of a weight."""
    case = problem(name)
    likelihood = replace(case.likelihood, weight=1.5)
    return lw.Laplace(likelihood, weights=weights or lw.LastLayer()).task(case.model, data_of(name)).model


def data_of(name: str) -> Data:
    """The training data of a problem."""
    return Data(problem(name).batches(), like=torch.zeros(0).double())


@pytest.mark.parametrize("structure", SUMS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_sums_are_those_of_pulled_back_gradients(
    name: str, structure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = given(name)
    assert model.survey.head
    plain = replace(model, survey=replace(model.survey, head=False))
    expected = SUMS[structure](model.network)
    sweep(plain, GGN(), expected)
    monkeypatch.setattr(Pass, "factors", None)
    monkeypatch.setattr(base, "CACHED", 1)  # position by position
    found = SUMS[structure](model.network)
    sweep(model, GGN(), found)
    torch.testing.assert_close(
        found.result().operator.dense(), expected.result().operator.dense(), rtol=1e-10, atol=1e-12
    )
    assert found.result().partition == expected.result().partition


@pytest.mark.parametrize(("structure", "patterns"), [("dense", "*3.weight"), ("dense", "*3.bias"), ("kfac", "*3.bias")])
def test_a_weight_or_a_bias_alone_is_a_head_too(structure: str, patterns: str) -> None:
    model = given("categorical", lw.Names(patterns))
    assert model.survey.head
    found = SUMS[structure](model.network)
    sweep(model, GGN(), found)
    expected = 1.5 * Linearised(problem("categorical"), model.network).ggn
    torch.testing.assert_close(found.result().operator.dense(), expected, rtol=1e-10, atol=1e-12)


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    model = given("tokens")
    found = []
    for budget in (ggn.BUDGET, 1):
        monkeypatch.setattr(ggn, "BUDGET", budget)
        total = KroneckerSum(model.network)
        totals = sweep(model, GGN(), total)
        found.append((len(totals.parts), total.result().operator.dense()))
    assert found[0][0] < found[1][0]
    torch.testing.assert_close(found[0][1], found[1][1])


@pytest.mark.parametrize("structure", [lw.Full(view="weights"), lw.KFAC()], ids=["full", "kfac"])
def test_curvature_in_float32_has_no_negative_eigenvalues(structure: lw.Full | lw.KFAC) -> None:
    for _ in range(60):
        model, x, y = nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        posterior = lw.Laplace(lw.Categorical(), structure=structure).fit(model, (x, y))
        assert isinstance(posterior, WeightPosterior)
        assert bool((posterior.held.operator.eigenvalues() >= 0).all())


def test_a_curvature_of_whole_examples_still_pulls_back() -> None:
    model = given("tokens")
    expected, found = DenseSum(model.network), DenseSum(model.network)
    sweep(replace(model, survey=replace(model.survey, head=False)), EmpiricalFisher(), expected)
    sweep(model, EmpiricalFisher(), found)
    assert torch.equal(found.result().operator.dense(), expected.result().operator.dense())


def test_a_layer_of_many_outputs_behind_a_norm_is_a_head() -> None:
    """The features of a norm sum to 0: a change that is the same for all of them would move no output."""
    model = seeded(lambda: nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 4000, bias=False))).float()
    data = Data((torch.randn(5, 256), torch.arange(5)), like=torch.zeros(0))
    assert lw.Laplace(lw.Categorical(), weights=lw.LastLayer()).task(model, data).model.survey.head


class Other(nn.Module):
    """A linear layer whose outputs are not quite the network's."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.last = how, nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """What the name says."""
        f = self.last(x)
        match self.how:
            case "twice":
                return f + self.last(x)
            case "added":
                return f + x
            case "cut":
                return f[:, :2]
        return 3 * f if self.how == "tripled" else f.flip(-1)


@pytest.mark.parametrize("how", ["tripled", "flipped", "twice", "added", "cut"])
def test_a_layer_whose_outputs_were_changed_is_no_head(how: str) -> None:
    module = seeded(lambda: Other(how))
    model = surveyed(Network.of(module), lw.Gaussian(), data_of("gaussian"))
    assert model.survey.head == (how == "added"), "what is added does not depend on the weights"


@pytest.mark.parametrize("class_dim", [-1, 1])
def test_a_layer_whose_outputs_are_read_across_is_no_head(class_dim: int) -> None:
    """As many positions as outputs: only a derivative tells which is which."""

    class Turned(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).mT

    x, y = torch.randn(5, 3, 2, dtype=torch.float64), torch.arange(15).view(5, 3) % 3
    model = surveyed(
        Network.of(seeded(lambda: Turned(2, 3))), lw.Categorical(event_dim=1, class_dim=class_dim), Data((x, y))
    )
    assert model.survey.head == (class_dim == 1)


def test_a_last_layer_is_found_by_few_examples() -> None:
    model, read = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))), list[int]()
    handle = model.register_forward_pre_hook(lambda _, args: read.append(len(args[0])))
    x, y = torch.randn(30, 3, dtype=torch.float64), torch.arange(30) % 3
    lw.Laplace(lw.Categorical(), weights=lw.LastLayer(), structure=lw.KFAC()).fit(model, (x, y))
    handle.remove()
    assert sorted(read) == [2, 2, 3, 3, 3, 30]


def test_outputs_behind_what_does_nothing_on_the_first_examples_are_no_head() -> None:
    module = seeded(lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    x = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        module[0].bias += 1.0
        x = x[module[0](x).amin(1).argsort(descending=True)]
        assert float(module[0](x[:3]).min()) > 0 > float(module[0](x).min())
    model = surveyed(Network.of(module), lw.Gaussian(), Data((x, module(x).detach())))
    assert not model.survey.head


@pytest.mark.parametrize("structure", ["full-weights", "diagonal", "kfac", "kfac-reduce-separate"])
@pytest.mark.parametrize("name", ["categorical", "heteroscedastic", "bernoulli", "poisson", "tokens", "pixels"])
def test_many_outputs_have_the_variances_of_few(name: str, structure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = problem(name)
    recipe = lw.Laplace(case.likelihood, structure=STRUCTURES[structure], weights=lw.LastLayer())
    posterior = case.fit(recipe)
    plain = replace(posterior, model=replace(posterior.model, survey=replace(posterior.survey, head=False)))
    expected, found = plain.outputs(case.new), posterior.outputs(case.new)
    torch.testing.assert_close(found.covariance, expected.covariance, rtol=1e-10, atol=1e-14)
    monkeypatch.setattr(jacobian_model, "MANY", 1)
    wide = posterior.outputs(case.new)
    assert isinstance(wide, Moments if structure == "full-weights" else WideMoments)
    torch.testing.assert_close(wide.variance, expected.variance, rtol=1e-8, atol=1e-14)
    torch.testing.assert_close(wide.covariance, expected.covariance, rtol=1e-8, atol=1e-14)
    assert torch.equal(wide.mean, expected.mean)
    for link in ("probit", "mc", "qmc"):
        one, other = (
            each.predict(case.new, link, generator=torch.Generator().manual_seed(0)) for each in (posterior, plain)
        )
        found_mean, expected_mean = (each.probs if hasattr(each, "probs") else each.mean for each in (one, other))
        near = {"rtol": 1e-8, "atol": 1e-12} if link != "mc" else {"rtol": 0.2, "atol": 0.05}
        torch.testing.assert_close(found_mean, expected_mean, **near)


def test_draws_of_many_outputs_have_their_covariance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jacobian_model, "MANY", 1)
    case = problem("categorical")
    wide = case.fit(lw.Laplace(case.likelihood, structure=lw.KFAC(), weights=lw.LastLayer())).outputs(case.new)
    drawn = wide.sample(20_000, generator=torch.Generator().manual_seed(0)) - wide.mean
    found = torch.einsum("sni,snj->nij", drawn, drawn) / len(drawn)
    torch.testing.assert_close(found, wide.covariance, rtol=0.1, atol=0.05 * float(wide.variance.max()))


@pytest.mark.parametrize("structure", ["diagonal", "kfac"])
def test_many_outputs_are_tuned_by_their_variances(structure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = problem("categorical")
    recipe = lw.Laplace(case.likelihood, structure=STRUCTURES[structure], weights=lw.LastLayer())
    expected = lw.tune(case.fit(recipe), lw.Validation((case.x, case.y), link="probit"))
    monkeypatch.setattr(jacobian_model, "MANY", 1)
    posterior = case.fit(recipe)
    assert posterior.link == "probit"
    tuned = lw.tune(posterior, lw.Validation((case.x, case.y)))
    assert tuned.link == "probit"
    assert tuned.prior.precision == pytest.approx(expected.prior.precision, rel=1e-6)


def test_many_outputs_of_few_drawn_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their gradients span less than half of the outputs: the factor is held in low rank."""
    model = nn.Linear(3, 9).double()
    x, y = torch.randn(2, 3, dtype=torch.float64), torch.tensor([4, 0])
    recipe = lw.Laplace(lw.Categorical(), structure=lw.KFAC(), curvature=lw.MCFisher())
    posterior = recipe.fit(model, (x, y), generator=torch.Generator().manual_seed(0))
    assert posterior.held.operator.blocks[0].bases[0].others
    expected = posterior.outputs(x)
    monkeypatch.setattr(jacobian_model, "MANY", 1)
    torch.testing.assert_close(posterior.outputs(x).covariance, expected.covariance, rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize("selection", [lw.LastLayer(), lw.All()], ids=repr)
@pytest.mark.parametrize("structure", ["full-weights", "diagonal", "kfac"])
def test_outputs_at_some_positions_are_those_of_all(
    structure: str, selection: Selection, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, places = problem("pixels"), torch.tensor([4, 1])
    posterior = case.fit(lw.Laplace(case.likelihood, structure=STRUCTURES[structure], weights=selection))
    assert isinstance(posterior, WeightPosterior)
    for many in (256, 1):
        monkeypatch.setattr(jacobian_model, "MANY", many)
        (whole,), (some,) = (
            posterior.outputs_each(case.new, [posterior]),
            posterior.outputs_at(case.new, places, [posterior]),
        )
        torch.testing.assert_close(some.mean, whole.mean.flatten(1, 2)[:, places])
        torch.testing.assert_close(some.covariance, whole.covariance.flatten(1, 2)[:, places], rtol=1e-10, atol=1e-14)


def test_pixels_pulled_back_one_by_one_are_said_to_take_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exact, "OUTPUTS", 17)
    monkeypatch.setattr(exact, "LONG", 0.0)
    case = problem("pixels")
    for weights, said in ((lw.All(), True), (lw.LastLayer(), False)):
        caplog.clear()
        posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.KFAC(), weights=weights))
        posterior.predict(case.new)
        assert ("18 outputs an example, each pulled back by itself" in caplog.text) == said


@pytest.mark.parametrize("structure", ["diagonal", "kfac"])
def test_of_many_positions_the_curvature_is_drawn(
    structure: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case = problem("pixels")
    recipe = lw.Laplace(case.likelihood, structure=STRUCTURES[structure])
    every = case.fit(recipe)
    monkeypatch.setattr(summed, "EXACT", 17)
    monkeypatch.setattr(summed, "DRAWS", 1000)
    with caplog.at_level("INFO", "lapwing"):
        drawn, again = case.fit(recipe), case.fit(recipe)
    assert "18 outputs an example: the curvature from 1000 draws" in caplog.text
    one, other = (each.precision_operator.dense() for each in (drawn, every))
    torch.testing.assert_close(one, other, rtol=0.1, atol=0.04 * float(other.diagonal().max()))
    assert torch.equal(one, again.precision_operator.dense()) and not torch.equal(one, other)


@pytest.mark.parametrize("name", ["categorical", "bernoulli", "tokens"])
def test_of_very_many_outputs_few_are_kept_together(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case = problem(name)
    recipe = lw.Laplace(case.likelihood, structure=lw.KFAC(), weights=lw.LastLayer())
    whole = case.fit(recipe).precision_operator.dense()
    monkeypatch.setattr(jacobian_model, "MANY", 1)
    monkeypatch.setattr(outputs, "TOGETHER", 2 if name != "bernoulli" else 1)
    with caplog.at_level("INFO", "lapwing"):
        posterior = case.fit(recipe)
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
    assert f"{2 if name != 'bernoulli' else 0} of {c} outputs together" in caplog.text
    if name != "bernoulli":
        beside = curvature[-c:, -c:].abs().fill_diagonal_(0.0)  # of the biases, which sees the output Hessian alone
        assert f"keeps {float(beside[most][:, most].sum() / beside.sum()):.3g} of what couples" in caplog.text
        with refused(UnsupportedError, "joint"):
            posterior.predict(case.new, joint=True)
