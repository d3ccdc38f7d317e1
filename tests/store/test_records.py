"""Likelihoods, priors, surveys, totals, traces and inputs come back equal, through JSON text."""

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
from lapwing.curvature.sums import Fingerprint, Totals
from lapwing.ground.archive import Tensors, inputs_from, inputs_state
from lapwing.ground.errors import ConfigError, DataError, UnsupportedError
from lapwing.jacobian.layers.layers import Layer, Survey
from lapwing.likelihoods import Likelihood
from lapwing.posteriors import Step
from lapwing.priors import GPrior, Prior
from lapwing.store import records

CPU = torch.device("cpu")


def text(state: Any) -> Any:
    return json.loads(json.dumps(state))


@pytest.mark.parametrize(
    "likelihood",
    [
        lw.Gaussian(1 / 3),
        lw.Gaussian((0.1, 2.0), event_dim=1, class_dim=1),
        lw.Categorical(),
        lw.Categorical(event_dim=2, class_dim=1),
        lw.Bernoulli(),
        lw.Poisson(),
        lw.HeteroscedasticGaussian(),
    ],
    ids=repr,
)
def test_likelihoods(likelihood: Likelihood) -> None:
    assert records.likelihood_from(text(records.likelihood_state(likelihood))) == likelihood


def test_likelihoods_of_others_are_refused() -> None:
    @dataclass(frozen=True)
    class Categorical(Likelihood):
        pass

    Categorical.__abstractmethods__ = frozenset()
    with pytest.raises(UnsupportedError, match=r"Got Categorical\. Try one of lapwing's"):
        records.likelihood_state(Categorical())  # type: ignore[abstract]
    with pytest.raises(DataError, match="'StudentT'"):
        records.likelihood_from({"kind": "StudentT"})


@pytest.mark.parametrize(
    ("prior", "held"),
    [
        (lw.Isotropic(1 / 3), 0),
        (lw.Layerwise(2.0), 0),
        (lw.Layerwise((0.1, 3.0)), 0),
        (lw.DiagonalPrior(0.1), 0),
        (lw.DiagonalPrior(torch.rand(records.INLINE, dtype=torch.float64) + 0.1), 0),
        (lw.DiagonalPrior(torch.rand(records.INLINE + 1, dtype=torch.float64) + 0.1), 1),
        (lw.Layerwise((0.1, 3.0), parts=(("a", "b"),)), 0),
        (GPrior(0.3, samples=8), 0),
        (GPrior(0.3, scale=torch.rand(records.INLINE, dtype=torch.float64) + 0.1), 0),
        (GPrior(0.3, scale=torch.rand(records.INLINE + 1, dtype=torch.float64) + 0.1), 1),
    ],
    ids=["isotropic", "one", "layerwise", "one-number", "short", "long", "parts", "unscaled", "scaled", "long-scale"],
)
def test_priors_and_only_long_ones_leave_the_header(prior: Prior, held: int) -> None:
    tensors = Tensors()
    state = text(records.prior_state(prior, tensors))
    assert len(tensors.named) == held
    assert records.prior_from(state, tensors) == prior


def test_priors_of_others_are_refused() -> None:
    class Spike(Prior):
        def state(self) -> dict[str, Any]:
            return {"kind": "Spike", "precision": 1.0}

    Spike.__abstractmethods__ = frozenset()
    with pytest.raises(ConfigError, match="Spike"):
        records.prior_state(Spike(), Tensors())  # type: ignore[abstract]


def test_surveys() -> None:
    layers = (Layer("conv", "0.weight", None, 0), Layer("layer_norm", None, "1.bias", 1))
    survey = Survey(layers, ("gate",), torch.Size([4, 3]), (12, 7), "one by one")
    state = text(records.survey_state(survey))
    again = records.survey_from(state)
    assert again == survey
    del state["way"]
    assert records.survey_from(state).way == "by cotangent"
    assert type(again.output) is torch.Size


@pytest.mark.parametrize("score", [None, torch.arange(3.0)])
def test_totals(score: Tensor | None) -> None:
    parts = (Fingerprint(2**40, 0.1, 1e-300, 1 / 3), Fingerprint(3, 1e300, 2.0, 0.7))
    totals, tensors = Totals(parts, 17.25, 1 / 7, score), Tensors()
    state = text(records.totals_state(totals, tensors))
    again = records.totals_from(state, tensors, CPU)
    assert (again.parts, again.observations, again.misfit) == (parts, 17.25, 1 / 7)
    assert (state["examples"], state["nll"]) == (totals.examples, totals.nll)
    assert type(again.parts[0].examples) is int
    assert (again.score is None) if score is None else torch.equal(again.score, score)


def test_traces_and_only_long_steps_leave_the_header() -> None:
    long = tuple(1 / (i + 1) for i in range(records.INLINE + 1))
    trace = (Step(-3.0, (0.1,), None, 1.5), Step(-2.0, (0.1, 0.2), 4.0, 1.5, 0.3), Step(-1.0, long, None, 2.0))
    tensors = Tensors()
    state = text(records.trace_state(trace, tensors))
    assert list(tensors.named) == ["trace.2.prior_precision"]
    assert records.trace_from(state, tensors) == trace


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
