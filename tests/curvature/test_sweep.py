"""One sweep over the data: what it adds up, whatever the size of its chunks, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lapwing.curvature import sweep as sweep_module
from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.dense import DenseSum
from lapwing.curvature.diagonal import DiagonalSum
from lapwing.curvature.fold import Fold, Totals
from lapwing.curvature.kfac import KroneckerSum
from lapwing.curvature.kinds import GGN, EmpiricalFisher, MCFisher, SampledGGN
from lapwing.curvature.sweep import Accumulator, chunk_size, rows_at_once, sweep
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import DataError, ShapeError
from lapwing.ground.progress import Bar
from lapwing.jacobian.layers.capture import FEW
from lapwing.jacobian.limits import Limits
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.survey import surveyed
from lapwing.likelihoods import Categorical, Gaussian
from tests.cases import CASES
from tests.curvature.naive import Known, known
from tests.curvature.unchanged import unchanged
from tests.pairwise import in_turn

STRUCTURES: dict[str, Callable[[Network], Accumulator]] = {
    "diagonal": DiagonalSum,
    "dense": DenseSum,
    "kfac": KroneckerSum,
    "kfac-reduce": lambda network: KroneckerSum(network, "reduce", "separate"),
}


def swept(case: Known, structure: str, **changes: object) -> tuple[BlockedCurvature, Totals]:
    total = STRUCTURES[structure](case.network)
    given = {"source": case.data, "likelihood": case.case.likelihood, "curvature": GGN(), **changes}
    of_model = {name: given.pop(name) for name in ("source", "likelihood", "limits") if name in given}
    model = replace(case.model, **of_model)  # type: ignore[arg-type]
    totals = sweep(model, total=total, **given)  # type: ignore[arg-type]
    return total.result(), totals


@pytest.mark.parametrize(("name", "structure"), in_turn(CASES, STRUCTURES, whole=("lenet", "tagger", "folded")))
def test_chunks_of_one_give_what_all_at_once_gives(name: str, structure: str) -> None:
    case = known(name)
    with unchanged(case.case.model):
        whole, totals = swept(case, structure)
    single, parts = swept(case, structure, limits=Limits(training=1))
    assert len(totals.parts) == 1 and len(parts.parts) == 4
    torch.testing.assert_close(single.operator.dense(), whole.operator.dense(), rtol=1e-9, atol=1e-11)
    assert single.partition == whole.partition


class Multiplied(TorchDispatchMode):
    """Counts the multiplications of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_):
            left, right = args[-2:]
            self.total += left.numel() * right.shape[-1]
        return func(*args, **(kwargs or {}))


def test_what_is_left_is_told_by_units_of_as_much_work_as_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second backward pass on: no product of what it left is put off until there is more of it."""
    model = nn.Sequential(nn.Linear(5, 700), nn.Tanh(), nn.Linear(700, 3)).double()
    likelihood = Categorical(event_dim=1)
    batches = [(torch.randn(8, 16, 5).double(), torch.randint(3, (8, 16))) for _ in range(2)]
    network = Network.of(model)
    known = surveyed(network, likelihood, Data(batches, like=network.like))
    counted = Multiplied()
    work = list[int]()

    class Watched(Bar):
        def update(self, units: int = 1, said: str | None = None) -> None:
            work.append(counted.total)
            super().update(units, said)

    monkeypatch.setattr(sweep_module, "Bar", Watched)
    with counted:
        sweep(known, SampledGGN(8), KroneckerSum(network), generator=torch.Generator().manual_seed(0))
    assert len(work) == 16
    for done in range(1, 12):
        told = (work[done] - work[0]) / done * (15 - done)
        came = work[-1] - work[done]
        assert came / 2 < told < 2 * came


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


def test_chunks_follow_the_budget() -> None:
    case = known("unet")
    assert chunk_size(case.model, GGN()) == 4096
    model = replace(case.model, limits=Limits(training=40 * 8 * sum(case.survey.floats)))
    assert chunk_size(model, MCFisher()) == 40 and FEW <= chunk_size(model, GGN()) < 40
    assert chunk_size(model, MCFisher(), floats=10**6) == 1


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
def test_an_interrupted_sweep_leaves_the_module_as_it_was(name: str, structure: str) -> None:
    case = known(name)
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
                swept(case, structure, limits=Limits(training=1))
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


def test_rows_of_parameters_without_factors_are_made_as_many_at_a_time_as_memory_allows() -> None:
    case = known("bare_parameter")
    row = sum(case.network.params[name].nbytes for name in case.survey.without_factors)
    assert [rows_at_once(case.model, size * row) for size in (0, 1, 3, 1000)] == [1, 1, 3, 64]
