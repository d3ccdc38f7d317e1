"""One sweep over the data: what it adds up, whatever the size of its chunks, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.curvature import ggn
from lapwing.curvature.fold import Fold, Totals
from lapwing.curvature.ggn import GGN, Accumulator, EmpiricalFisher, MCFisher, chunk_size, sweep
from lapwing.curvature.kfac import KroneckerSum
from lapwing.curvature.sums import DenseSum, DiagonalSum, Held
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import DataError, NumericalError, ShapeError
from lapwing.jacobian.layers.capture import FEW
from lapwing.jacobian.layers.factors import Rows, jacobian_rows
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Categorical, Gaussian
from lapwing.linalg import Dense, Diagonal
from tests.cases import CASES
from tests.curvature import naive
from tests.curvature.naive import Known, known
from tests.curvature.unchanged import unchanged
from tests.posterior_cases import refused

STRUCTURES: dict[str, Callable[[Network], Accumulator]] = {
    "diagonal": DiagonalSum,
    "dense": DenseSum,
    "kfac": KroneckerSum,
    "kfac-reduce": lambda network: KroneckerSum(network, "reduce", "separate"),
}


def swept(case: Known, structure: str, **changes: object) -> tuple[Held, Totals]:
    total = STRUCTURES[structure](case.network)
    given = {"source": case.data, "likelihood": case.case.likelihood, "curvature": GGN(), **changes}
    model = replace(case.model, source=given.pop("source"), likelihood=given.pop("likelihood"))
    totals = sweep(model, total=total, **given)  # type: ignore[arg-type]
    return total.result(), totals


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", CASES)
def test_chunks_of_one_give_what_all_at_once_gives(name: str, structure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = known(name)
    with unchanged(case.case.model):
        whole, totals = swept(case, structure)
    monkeypatch.setattr(ggn, "BUDGET", 1)
    single, parts = swept(case, structure)
    assert len(totals.parts) == 1 and len(parts.parts) == 4
    torch.testing.assert_close(single.operator.dense(), whole.operator.dense(), rtol=1e-9, atol=1e-11)
    assert single.partition == whole.partition


@pytest.mark.parametrize("structure", STRUCTURES)
def test_batches_of_the_loader_do_not_matter(structure: str) -> None:
    case = known("lenet")
    x, y = case.case.inputs, case.case.targets
    assert isinstance(x, Tensor)
    batches = Data([(x[:1], y[:1]), (x[1:], y[1:])], like=case.network.like)
    one, two = swept(case, structure)[0], swept(case, structure, source=batches)[0]
    torch.testing.assert_close(one.operator.dense(), two.operator.dense(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_random_curvature_takes_a_generator(structure: str) -> None:
    case = known("mlp")
    seeds = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    first, again, other = (swept(case, structure, curvature=MCFisher(), generator=g)[0] for g in seeds)
    assert torch.equal(first.operator.dense(), again.operator.dense())
    assert not torch.equal(first.operator.dense(), other.operator.dense())


@pytest.mark.parametrize("name", CASES)
def test_totals_are_sums_over_the_data(name: str) -> None:
    case = known(name)
    likelihood = case.case.likelihood
    totals = swept(case, "diagonal", curvature=EmpiricalFisher())[1]
    y = likelihood.canonical_targets(case.outputs, case.case.targets)
    assert totals.examples == len(case.outputs)
    assert totals.observations == likelihood.count(y)
    assert totals.nll == pytest.approx(float(likelihood.nll(case.outputs, y).sum()))
    (part,) = totals.parts
    assert part.targets == pytest.approx(float(y.double().square().sum()))
    if not isinstance(likelihood, Gaussian):
        assert totals.misfit == 0.0 and totals.score is None
        return
    residual = y - case.outputs
    assert totals.misfit == pytest.approx(1.5 * float(residual.square().sum()))
    assert totals.score is not None
    expected = 1.5 * residual.flatten() @ case.jacobian.flatten(0, -2)
    torch.testing.assert_close(totals.score, expected, rtol=1e-9, atol=1e-10)


def test_inputs_of_every_kind_are_in_the_fingerprint() -> None:
    case = known("cross_attention")
    (part,) = swept(case, "diagonal")[1].parts
    assert isinstance(case.case.inputs, tuple)
    assert part.inputs == pytest.approx(sum(float(x.double().square().sum()) for x in case.case.inputs))


def test_totals_need_not_have_the_score() -> None:
    data = Fold(known("in_place").model, 2, score=False)
    assert len(list(data)) == 2
    totals = data.totals()
    assert [part.examples for part in totals.parts] == [2, 2]
    assert totals.score is None and totals.misfit > 0 and math.isfinite(totals.nll)


def test_noise_may_differ_between_outputs() -> None:
    case = known("in_place")
    likelihood = Gaussian((0.5, 4.0))
    totals = swept(case, "diagonal", likelihood=likelihood)[1]
    residual = case.case.targets - case.outputs
    weighted = torch.tensor([0.5, 4.0], dtype=torch.float64) * residual
    assert totals.misfit == pytest.approx(float((weighted * residual).sum()))
    assert totals.score is not None
    torch.testing.assert_close(totals.score, weighted.flatten() @ case.jacobian.flatten(0, 1))


def test_cotangents_return_to_the_axes_of_the_network() -> None:
    u = torch.randn(3, 4, 2, 5, 7)
    assert Categorical(event_dim=2, class_dim=1).returned(u).shape == (3, 4, 7, 2, 5)
    torch.testing.assert_close(Categorical(event_dim=2).returned(u), u)


def test_chunks_follow_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    case = known("unet")
    assert chunk_size(case.model, GGN()) == 4096
    monkeypatch.setattr(ggn, "BUDGET", 40 * 8 * sum(case.survey.floats))
    assert chunk_size(case.model, MCFisher()) == 40 and FEW <= chunk_size(case.model, GGN()) < 40
    assert chunk_size(case.model, MCFisher(), floats=10**6) == 1


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_data_that_are_not_finite_are_refused(value: float) -> None:
    case = known("in_place")
    x, y = case.case.inputs, case.case.targets
    assert isinstance(x, Tensor)
    for what, pair in {
        "inputs": (x.clone().fill_(value), y),
        "targets": (x, y.index_fill(0, torch.tensor(2), value)),
    }.items():
        with pytest.raises(DataError, match=f"finite {what}"):
            swept(case, "diagonal", source=Data([pair], like=case.network.like))


def test_targets_that_do_not_fit_are_refused() -> None:
    case = known("mlp")
    x = case.case.inputs
    with pytest.raises(DataError, match="labels from 0 to 2"):
        swept(case, "dense", source=Data([(x, torch.tensor([0, 1, 2, 3]))], like=case.network.like))
    with pytest.raises(ShapeError, match="targets of shape"):
        swept(case, "dense", source=Data([(x, torch.zeros(4, 2, dtype=torch.long))], like=case.network.like))
    with pytest.raises(ShapeError, match="event_dim=1"):
        swept(case, "dense", likelihood=Categorical(event_dim=1))


@pytest.mark.parametrize("name", ["mlp", "lstm", "unet", "bare_parameter"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_an_interrupted_sweep_leaves_the_module_as_it_was(
    name: str, structure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = known(name)
    monkeypatch.setattr(ggn, "BUDGET", 1)
    passes = 0

    def interrupt(*_: object) -> None:
        nonlocal passes
        passes += 1
        if passes == 3:
            raise KeyboardInterrupt

    with unchanged(case.case.model):
        last = list(case.case.model.modules())[-1]
        handle = last.register_forward_hook(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                swept(case, structure)
        finally:
            handle.remove()


def test_what_is_held_is_on_the_uncertain_weights_alone() -> None:
    case = known("mlp")
    index = torch.tensor([1, 20, 30])
    network = Network(case.case.model, case.network.names, index)
    for structure in ("diagonal", "dense"):
        total = STRUCTURES[structure](network)
        sweep(replace(case.model, network=network), GGN(), total)
        whole = swept(case, structure)[0].operator.dense()
        torch.testing.assert_close(total.result().operator.dense(), whole[index][:, index])


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_gauss_newton_matrix(name: str) -> None:
    case = known(name)
    total = DenseSum(case.network)
    sweep(case.model, GGN(), total)
    held = total.result()
    assert isinstance(held.operator, Dense) and held.partition == ()
    torch.testing.assert_close(held.operator.dense(), naive.ggn(case), rtol=1e-9, atol=1e-10)


def test_it_is_the_gram_matrix_of_the_gradients_for_the_empirical_fisher() -> None:
    case = known("unet")
    total = DenseSum(case.network)
    sweep(case.model, EmpiricalFisher(), total)
    score = case.case.likelihood.score(case.outputs, case.case.targets)
    gradients = torch.einsum("nc,ncd->nd", score.flatten(1), case.jacobian.flatten(1, -2))
    torch.testing.assert_close(total.result().operator.dense(), gradients.mT @ gradients)


def test_rows_follow_the_order_of_the_parameters() -> None:
    network = known("mlp").network
    sizes = dict(zip(network.names, network.layout.sizes, strict=True))
    whole = torch.arange(float(network.size)).double().expand(1, 1, -1)
    parts = [Rows(name, None, whole[..., network.layout.slices[name]]) for name in reversed(network.names)]
    assert [part.g.shape[-1] for part in parts] == [sizes[name] for name in reversed(network.names)]
    assert torch.equal(jacobian_rows(network, parts), whole)
    masked = Network(network.module, network.names, torch.tensor([4, 7]))
    assert jacobian_rows(masked, parts).tolist() == [[[4.0, 7.0]]]
    assert DenseSum(masked).floats == network.size


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_diagonal_of_the_gauss_newton_matrix(name: str) -> None:
    case = known(name)
    total = DiagonalSum(case.network)
    sweep(case.model, GGN(), total)
    held = total.result()
    assert isinstance(held.operator, Diagonal) and held.partition == ()
    torch.testing.assert_close(held.operator.values, naive.ggn(case).diagonal(), rtol=1e-9, atol=1e-10)


def test_it_is_the_sum_of_squared_gradients_for_the_empirical_fisher() -> None:
    case = known("lenet")
    total = DiagonalSum(case.network)
    sweep(case.model, EmpiricalFisher(), total)
    score = case.case.likelihood.score(case.outputs, case.case.targets)
    gradients = torch.einsum("nc,ncd->nd", score, case.jacobian)
    torch.testing.assert_close(total.result().operator.diagonal(), gradients.square().sum(0))


def test_squares_that_overflow_are_refused() -> None:
    x, y = 1e20 * torch.randn(5, 3), torch.zeros(5, dtype=torch.long)
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.mul_(1e-20)
    with refused(NumericalError, "finite numbers"):
        lw.Laplace(lw.Categorical(), structure=lw.Diagonal()).fit(model, (x, y))
    posterior = lw.Laplace(lw.Categorical(), structure=lw.Diagonal()).fit(model.double(), (x.double(), y))
    assert posterior.effective_dimension() == pytest.approx(8, abs=2)


def test_single_weights_have_their_own_entries() -> None:
    case = known("mlp")
    index = torch.tensor([0, 3, 40])
    network = Network(case.case.model, case.network.names, index)
    total = DiagonalSum(network)
    sweep(replace(case.model, network=network), GGN(), total)
    torch.testing.assert_close(total.result().operator.diagonal(), naive.ggn(case).diagonal()[index])


def test_a_diagonal_in_half_precision_goes_on_growing() -> None:
    """In bfloat16 a sum of ones would end at 256."""
    model = nn.Linear(2, 1, bias=False).bfloat16()
    total = DiagonalSum(Network.of(model))
    for _ in range(1000):
        total.add(iter([Rows("weight", None, torch.ones(1, 1, 2, dtype=torch.bfloat16))]))
    assert total.result().operator.diagonal().tolist() == [1000.0, 1000.0]
    posterior = lw.Laplace(lw.Gaussian(), structure=lw.Diagonal()).fit(model, (torch.ones(1, 2), torch.zeros(1, 1)))
    assert posterior.sample(3).dtype == posterior.predict(torch.ones(1, 2)).mean.dtype == torch.bfloat16
