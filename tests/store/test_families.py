"""Likelihoods, priors, surveys, totals, traces, inputs, operators and solvers come back equal, through JSON text."""

from __future__ import annotations

import enum
import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

import lapwing as lw
from lapwing.curvature.fold import Fingerprint, Totals
from lapwing.ground.errors import DataError, UnsupportedError
from lapwing.ground.files.archive import Tensors
from lapwing.ground.files.records import INLINE, inputs_from, inputs_state
from lapwing.jacobian.layers.base import Layer
from lapwing.jacobian.layers.capture import Survey
from lapwing.likelihoods import Likelihood
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, FunctionOperator, Kronecker, LowRank, Structured
from lapwing.linalg.operators.eigenbasis import decompose_nonzero, decompose_root
from lapwing.posteriors import Step
from lapwing.posteriors.record import totals_of, totals_record
from lapwing.priors import GPrior, Prior
from lapwing.store.families import records

CPU = torch.device("cpu")


def text(state: Any) -> Any:
    return json.loads(json.dumps(state))


def through(kind: Any, value: Any) -> Any:
    """A value by way of the text of a file."""
    tensors = Tensors()
    return records(tensors).read(kind, text(records(tensors).state(value, "value")), "value")


@pytest.mark.parametrize(
    "likelihood",
    [
        lw.Gaussian(1 / 3),
        lw.Gaussian((0.1, 2.0), event_dim=1, class_dim=1),
        lw.Categorical(),
        lw.Categorical(event_dim=2, class_dim=1),
        lw.Bernoulli(),
        lw.Poisson(),
        lw.NegativeBinomial(0.3, event_dim=1),
        lw.HeteroscedasticGaussian(),
        lw.StudentT(3.0, 1 / 3, event_dim=2, class_dim=1),
    ],
    ids=repr,
)
def test_likelihoods(likelihood: Likelihood) -> None:
    assert through(Likelihood, likelihood) == likelihood


def test_likelihoods_of_others_are_refused() -> None:
    @dataclass(frozen=True)
    class Categorical(Likelihood):
        pass

    Categorical.__abstractmethods__ = frozenset()
    with pytest.raises(UnsupportedError, match=r"Got Categorical\. Try one of lapwing's"):
        records().state(Categorical())  # type: ignore[abstract]
    with pytest.raises(DataError, match="'Laplacian'"):
        records().read(Likelihood, {"kind": "Laplacian"}, "likelihood")


@pytest.mark.parametrize(
    ("prior", "held"),
    [
        (lw.Isotropic(1 / 3), 0),
        (lw.Layerwise(2.0), 0),
        (lw.Layerwise((0.1, 3.0)), 0),
        (lw.DiagonalPrior(0.1), 0),
        (lw.DiagonalPrior(torch.rand(INLINE, dtype=torch.float64) + 0.1), 0),
        (lw.DiagonalPrior(torch.rand(INLINE + 1, dtype=torch.float64) + 0.1), 1),
        (lw.Layerwise((0.1, 3.0), parts=(("a", "b"),)), 0),
        (GPrior(0.3, samples=8), 0),
        (GPrior(0.3, scale=torch.rand(INLINE, dtype=torch.float64) + 0.1), 0),
        (GPrior(0.3, scale=torch.rand(INLINE + 1, dtype=torch.float64) + 0.1), 1),
    ],
    ids=["isotropic", "one", "layerwise", "one-number", "short", "long", "parts", "unscaled", "scaled", "long-scale"],
)
def test_priors_and_only_long_ones_leave_the_header(prior: Prior, held: int) -> None:
    tensors = Tensors()
    state = text(records(tensors).state(prior, "prior"))
    assert len(tensors.named) == held
    assert records(tensors).read(Prior, state, "prior") == prior
    plain = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in vars(prior).items()}
    in_words = text({"kind": type(prior).__name__} | plain)
    assert records().read(Prior, in_words, "prior") == prior


def test_priors_of_others_are_refused() -> None:
    class Spike(Prior):
        def __post_init__(self) -> None: ...

    with pytest.raises(UnsupportedError, match="Spike"):
        records().state(Spike())


def test_surveys() -> None:
    layers = (Layer("Convolution", "0.weight", None, 0), Layer("Norm", None, "1.bias", 1))
    survey = Survey(layers, ("gate",), torch.Size([4, 3]), (12, 7), "one by one")
    again = through(Survey, survey)
    assert again == survey
    assert type(again.output) is torch.Size


@pytest.mark.parametrize("score", [None, torch.arange(3.0)])
def test_totals(score: Tensor | None) -> None:
    parts = (Fingerprint(2**40, 0.1, 1e-300, 1 / 3), Fingerprint(3, 1e300, 2.0, 0.7))
    totals, tensors = Totals(parts, 17.25, 1 / 7, score), Tensors()
    state = text(totals_record(totals, records(tensors)))
    again = totals_of(state, records(tensors))
    assert (again.parts, again.observations, again.misfit) == (parts, 17.25, 1 / 7)
    assert (state["examples"], state["nll"]) == (totals.examples, totals.nll)
    assert type(again.parts[0].examples) is int
    assert (again.score is None) if score is None else torch.equal(again.score, score)


def test_traces_and_only_long_steps_leave_the_header() -> None:
    long = tuple(1 / (i + 1) for i in range(INLINE + 1))
    trace = (Step(-3.0, (0.1,), None, 1.5), Step(-2.0, (0.1, 0.2), 4.0, 1.5, 0.3), Step(-1.0, long, None, 2.0))
    tensors = Tensors()
    state = text(records(tensors).state(trace, "trace"))
    assert list(tensors.named) == ["trace.2.prior_precision"]
    assert records(tensors).read(tuple[Step, ...], state, "trace") == trace


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


X, IDS = torch.randn(2, 3), torch.tensor([[1, 2]])


@pytest.mark.parametrize(
    "inputs",
    [
        X,
        (X, IDS),
        (X, None, True, 3, 0.1, "mean"),
        {"input_ids": IDS, "attention_mask": IDS > 1, "use_cache": False, "a.b": X, "nested": {"b": [X, (IDS, 2)]}},
        {},
        (),
    ],
    ids=["tensor", "tuple", "flags", "mapping", "empty-mapping", "empty-tuple"],
)
def test_inputs(inputs: Any) -> None:
    tensors = Tensors()
    state = text(inputs_state(inputs, "inputs", tensors))
    assert same(inputs_from(state, tensors, CPU), inputs)


def test_any_mapping_comes_back_as_a_dict() -> None:
    tensors = Tensors()
    state = text(inputs_state(OrderedDict(x=X), "inputs", tensors))
    assert same(inputs_from(state, tensors, CPU), {"x": X})


class Mode(enum.IntEnum):
    A = 1


@pytest.mark.parametrize(
    "odd",
    [pack_sequence([X]), {1: X}, Mode.A, torch.float32, object()],
    ids=["packed", "int-key", "enum", "dtype", "any"],
)
def test_inputs_that_would_take_pickle_are_refused(odd: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"at inputs\.1\. Try Full\(view='weights'\)"):
        inputs_state((X, odd), "inputs", Tensors())


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def gram(*shape: int) -> Tensor:
    root = normal(*shape, shape[-1])
    return root @ root.mT


SHARED = gram(3)
POSITIONS = (torch.tensor([0, 3, 5]), torch.tensor([4, 1, 2]))
OPERATORS: dict[str, Structured] = {
    "diagonal": Diagonal(normal(4).exp()),
    "dense": Dense(gram(4)),
    "dense-scaled-shifted": Dense(gram(4)).scaled(1 / 3).shifted(0.1),
    "dense-tensor-scalars": Dense(gram(4)).scaled(torch.tensor(1 / 3)).shifted(torch.tensor(0.1, dtype=torch.float64)),
    "kronecker": Kronecker(gram(2), gram(3)),
    "kronecker-groups": Kronecker(gram(4, 2), gram(4, 3)).scaled(1 / 7).shifted(2.0),
    "kronecker-embedding": Kronecker(gram(2), normal(3).exp()).plus_diagonal(torch.full((6,), 0.3).double()),
    "kronecker-low-rank": Kronecker(decompose_nonzero(gram(2)), decompose_root(normal(5, 2), 99.0)).shifted(0.1),
    "low-rank": LowRank(normal(5, 2)),
    "low-rank-plus-diagonal": LowRank(normal(5, 2), Diagonal(normal(5).exp())).scaled(2.0),
    "blocks": BlockDiagonal((Dense(SHARED), Dense(SHARED), Diagonal(normal(2).exp()))),
    "blocks-of-positions": BlockDiagonal((Dense(gram(3)), Diagonal(normal(3).exp())), POSITIONS),
    "blocks-of-blocks": BlockDiagonal((BlockDiagonal((Dense(gram(2)), Kronecker(gram(1), gram(2)))), Dense(gram(2)))),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_comes_back_bit_for_bit(name: str) -> None:
    operator = OPERATORS[name]
    again = through(Structured, operator)
    assert type(again) is type(operator)
    assert (again.shape, again.dtype) == (operator.shape, operator.dtype)
    block = normal(operator.shape[0], 3)
    assert torch.equal(again @ block, operator @ block)
    assert torch.equal(again.diagonal(), operator.diagonal())
    assert torch.equal(again.eigenvalues(), operator.eigenvalues())
    assert torch.equal(again.shifted(0.5).logdet(), operator.shifted(0.5).logdet())
    solved, noise = operator.shifted(0.5), normal(operator.shape[0])
    assert torch.equal(through(Structured, solved).inverse_root() @ noise, solved.inverse_root() @ noise)


@pytest.mark.parametrize("scalar", [1 / 3, torch.tensor(1 / 3), torch.tensor(1 / 3, dtype=torch.float64)], ids=repr)
def test_scalars_keep_their_type(scalar: float | Tensor) -> None:
    again = through(Structured, Dense(gram(2), scalar, scalar))
    assert isinstance(again, Dense)
    for value in (again.scale, again.shift):
        assert type(value) is type(scalar)
        assert torch.as_tensor(value).dtype == torch.as_tensor(scalar).dtype
        assert float(value) == float(scalar)


def test_positions_take_half_the_bytes_and_come_back_long() -> None:
    tensors = Tensors()
    spec = records(tensors).state(OPERATORS["blocks-of-positions"], "curvature")
    assert tensors.named["curvature.index.0"].dtype == torch.int32
    again = records(tensors).read(Structured, spec, "curvature")
    assert isinstance(again, BlockDiagonal)
    assert again.index is not None
    assert [(x.dtype, x.tolist()) for x in again.index] == [(torch.long, x.tolist()) for x in POSITIONS]


def test_positions_beyond_32_bits_stay_whole() -> None:
    tensors, far = Tensors(), torch.tensor([2**40])
    assert tensors.get(tensors.put("far", far), CPU).tolist() == [2**40]


def test_operators_known_only_by_products_are_refused() -> None:
    products = FunctionOperator(lambda v: v, lambda u: u, (2, 2), torch.zeros(1))
    with pytest.raises(UnsupportedError, match="FunctionOperator"):
        records().state(products, "curvature")


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(DataError, match="'Toeplitz'"):
        records().read(Structured, {"kind": "Toeplitz"}, "curvature")
