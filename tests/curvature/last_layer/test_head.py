"""A layer whose outputs are the network's: what needs no gradient equals what the gradients of every output give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.dense import DenseSum
from lapwing.curvature.diagonal import DiagonalSum
from lapwing.curvature.fold import Fold
from lapwing.curvature.kfac import KroneckerSum
from lapwing.curvature.kinds import GGN, EmpiricalFisher
from lapwing.curvature.propagation import Propagation
from lapwing.curvature.sweep import Accumulator, sweep
from lapwing.ground.data.inputs import concatenated, take
from lapwing.ground.data.sources import Data
from lapwing.jacobian.forward_pass import Pass
from lapwing.jacobian.limits import LIMITS, Limits
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.survey import surveyed
from lapwing.likelihoods import Likelihood
from lapwing.posteriors import WeightPosterior
from lapwing.structures.selection import Selection
from tests.pairwise import in_turn
from tests.posterior_cases import PROBLEMS, Linearised, problem, seeded

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


@pytest.mark.parametrize(("name", "structure"), in_turn(PROBLEMS, list(SUMS), whole=("categorical", "tokens")))
def test_the_sums_are_those_of_pulled_back_gradients(
    name: str, structure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = given(name)
    assert model.survey.head
    plain = replace(model, survey=replace(model.survey, head=False))
    expected = SUMS[structure](model.network)
    sweep(plain, GGN(), expected)
    monkeypatch.setattr(Pass, "factors", None)
    found = SUMS[structure](model.network)
    sweep(model, GGN(), found)
    torch.testing.assert_close(
        found.result().operator.dense(), expected.result().operator.dense(), rtol=1e-10, atol=1e-12
    )
    assert found.result().partition == expected.result().partition


@pytest.mark.parametrize("name", PROBLEMS)
def test_covariances_of_many_inputs_are_those_of_rows_of_the_jacobian(name: str) -> None:
    model = given(name)
    total = DenseSum(model.network)
    sweep(model, GGN(), total)
    held = total.result()
    precisions = [BlockedCurvature(held.operator.shifted(prior), held.partition) for prior in (0.5, 3.0)]
    inputs = next(iter(data_of(name))).inputs
    copies = 1 + model.network.size
    many = concatenated([inputs] * copies)
    _, both = Propagation(model, tuple(precisions)).moments(many)
    for precision, found in zip(precisions, both, strict=True):
        propagation = Propagation(model, (precision,))
        plain = replace(propagation, model=replace(model, survey=replace(model.survey, head=False)))
        _, (expected,) = plain.moments(inputs)
        _, (few,) = propagation.moments(take(inputs, slice(0, 1)))
        _, (alone,) = propagation.moments(many)
        torch.testing.assert_close(few, expected[:1], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(alone, torch.cat([expected] * copies), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found, alone)


def by_position(likelihood: Likelihood, f: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The output Hessians of one position after the other."""
    rows = f.flatten(0, -2)
    targets = y.flatten(0, likelihood.event_dim)
    for position in range(len(rows)):
        entries = likelihood.hessian_entries(rows[position, None], targets[position, None])
        assert entries is not None
        yield entries


@pytest.mark.parametrize(
    ("name", "structure"), in_turn(["categorical", "poisson", "tokens", "pixels"], list(SUMS), whole=("tokens",))
)
def test_positions_may_come_one_by_one(name: str, structure: str) -> None:
    """As they do where one has as many outputs as a processor's cache has room for."""
    model = given(name)
    whole, found = SUMS[structure](model.network), SUMS[structure](model.network)
    sweep(model, GGN(), whole)
    for forward, f, y in Fold(model, 4):
        found.add_outputs(forward.head, partial(by_position, model.likelihood, f, y))
    torch.testing.assert_close(found.result().operator.dense(), whole.result().operator.dense())


@pytest.mark.parametrize(("structure", "patterns"), [("dense", "*3.weight"), ("dense", "*3.bias"), ("kfac", "*3.bias")])
def test_a_weight_or_a_bias_alone_is_a_head_too(structure: str, patterns: str) -> None:
    model = given("categorical", lw.Names(patterns))
    assert model.survey.head
    found = SUMS[structure](model.network)
    sweep(model, GGN(), found)
    expected = 1.5 * Linearised(problem("categorical"), model.network).ggn
    torch.testing.assert_close(found.result().operator.dense(), expected, rtol=1e-10, atol=1e-12)


def test_chunks_do_not_matter() -> None:
    model = given("tokens")
    found = []
    for limits in (LIMITS, Limits(training=1)):
        total = KroneckerSum(model.network)
        totals = sweep(replace(model, limits=limits), GGN(), total)
        found.append((len(totals.parts), total.result().operator.dense()))
    assert found[0][0] < found[1][0]
    torch.testing.assert_close(found[0][1], found[1][1])


@pytest.mark.parametrize("structure", [lw.Full(view="weights"), lw.KFAC()], ids=["full", "kfac"])
def test_curvature_in_float32_has_no_negative_eigenvalues(structure: lw.Full | lw.KFAC) -> None:
    for _ in range(60):
        model, x, y = nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        posterior = lw.Laplace(lw.Categorical(), structure=structure).fit(model, (x, y))
        assert isinstance(posterior, WeightPosterior)
        assert bool((posterior.curvature.operator.eigenvalues() >= 0).all())


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
    assert sorted(read) == [2, 2, 3, 3, 30]


def test_outputs_behind_what_does_nothing_on_the_first_examples_are_no_head() -> None:
    module = seeded(lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    x = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        module[0].bias += 1.0
        x = x[module[0](x).amin(1).argsort(descending=True)]
        assert float(module[0](x[:3]).min()) > 0 > float(module[0](x).min())
    model = surveyed(Network.of(module), lw.Gaussian(), Data((x, module(x).detach())))
    assert not model.survey.head
