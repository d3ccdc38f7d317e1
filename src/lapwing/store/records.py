"""Everything of a posterior that is neither network nor operator, as plain JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from lapwing.curvature.layers import Layer, Survey
from lapwing.curvature.sums import Fingerprint, Totals
from lapwing.errors import DataError, UnsupportedError
from lapwing.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood, Poisson
from lapwing.posteriors import Step
from lapwing.priors import DiagonalPrior, GPrior, Prior, prior_from_state
from lapwing.store.archive import Json, Tensors

LIKELIHOODS: dict[str, type[Likelihood]] = {
    "Bernoulli": Bernoulli,
    "Categorical": Categorical,
    "Gaussian": Gaussian,
    "HeteroscedasticGaussian": HeteroscedasticGaussian,
    "Poisson": Poisson,
}

INLINE = 256
"""Most numbers of one vector that stay in the header, where people can read them; longer ones become tensors."""


def likelihood_state(likelihood: Likelihood) -> Json:
    """A likelihood by its name and its fields.

    Raises:
        UnsupportedError: If it is none of lapwing's.

    Example:
        >>> likelihood_state(Gaussian(precision=4.0))
        {'kind': 'Gaussian', 'event_dim': 0, 'class_dim': -1, 'weight': 1.0, 'precision': 4.0}
    """
    kind = type(likelihood).__name__
    if LIKELIHOODS.get(kind) is not type(likelihood):
        raise UnsupportedError(f"one of {', '.join(LIKELIHOODS)}", kind, "a likelihood of lapwing to save a posterior")
    return {"kind": kind, **{field.name: getattr(likelihood, field.name) for field in fields(likelihood)}}


def likelihood_from(state: Json) -> Likelihood:
    """The likelihood that gave a state.

    Raises:
        DataError: If the state names a likelihood this lapwing does not have.
    """
    if state["kind"] not in LIKELIHOODS:
        raise DataError(f"one of {', '.join(LIKELIHOODS)}", f"'{state['kind']}'", "the lapwing that wrote the file")
    options = {name: value for name, value in state.items() if name != "kind"}
    return LIKELIHOODS[state["kind"]](**tupled(options))


def prior_state(prior: Prior, tensors: Tensors) -> Json:
    """A prior; a long vector of precisions or scales goes to ``tensors``.

    Raises:
        ConfigError: If it is none of lapwing's.
    """
    if isinstance(prior, DiagonalPrior) and isinstance(prior.precision, Tensor) and prior.precision.numel() > INLINE:
        return {"kind": "DiagonalPrior", "precision": tensors.put("prior.precision", prior.precision)}
    if isinstance(prior, GPrior) and prior.scale is not None and prior.scale.numel() > INLINE:
        return replace(prior, scale=None).state() | {"scale": tensors.put("prior.scale", prior.scale)}
    return dict(prior_from_state(prior.state()).state())


def prior_from(state: Json, tensors: Tensors) -> Prior:
    """The prior that gave a state."""
    return prior_from_state(
        {name: tensors.get(value) if isinstance(value, dict) else value for name, value in state.items()}
    )


def survey_state(survey: Survey) -> Json:
    """A survey of layers."""
    layers = [{field.name: getattr(layer, field.name) for field in fields(layer)} for layer in survey.layers]
    plain = {name: getattr(survey, name) for name in ("loose", "output", "floats", "way")}
    return {"layers": layers, **plain}


def survey_from(state: Json) -> Survey:
    """The survey that gave a state."""
    outputs, widest = state["floats"]
    layers = tuple(Layer(**tupled(layer)) for layer in state["layers"])
    way = state.get("way", "by cotangent")  # files of before do not say: what is right wherever "at once" was wrong
    return Survey(layers, tuple(state["loose"]), torch.Size(state["output"]), (outputs, widest), way)


def totals_state(totals: Totals, tensors: Tensors) -> Json:
    """Sums over the data: one row a chunk, which may be many. ``examples`` and ``nll`` are there to be read."""
    rows = [[part.examples, part.inputs, part.targets, part.nll] for part in totals.parts]
    return {
        "examples": totals.examples,
        "nll": totals.nll,
        "observations": totals.observations,
        "misfit": totals.misfit,
        "parts": tensors.put("totals.parts", torch.tensor(rows, dtype=torch.float64).view(-1, 4)),
        "score": None if totals.score is None else tensors.put("totals.score", totals.score),
    }


def totals_from(state: Json, tensors: Tensors, device: torch.device) -> Totals:
    """The sums that gave a state."""
    parts = tuple(Fingerprint(int(row[0]), *row[1:]) for row in tensors.get(state["parts"]).tolist())
    score = None if state["score"] is None else tensors.get(state["score"], device)
    return Totals(parts, float(state["observations"]), state["misfit"], score)


def trace_state(trace: tuple[Step, ...], tensors: Tensors) -> list[Json]:
    """Steps of tuning; a long vector of precisions goes to ``tensors``."""

    def short(value: Any, name: str) -> Any:
        if isinstance(value, tuple) and len(value) > INLINE:
            return tensors.put(name, torch.tensor(value, dtype=torch.float64))
        return value

    return [
        {field.name: short(getattr(step, field.name), f"trace.{number}.{field.name}") for field in fields(step)}
        for number, step in enumerate(trace)
    ]


def trace_from(states: list[Json], tensors: Tensors) -> tuple[Step, ...]:
    """The steps that gave the states."""

    def full(value: Any) -> Any:
        return tensors.get(value).tolist() if isinstance(value, dict) else value

    return tuple(Step(**tupled({name: full(value) for name, value in state.items()})) for state in states)


def inputs_state(inputs: Any, name: str, tensors: Tensors) -> Json:
    """A network's inputs: tensors, and plain values beside them, in tuples, lists and dicts.

    Raises:
        UnsupportedError: If there is anything else among them; it would take pickle to keep it.
    """
    if isinstance(inputs, Tensor):
        return tensors.put(name, inputs)
    if isinstance(inputs, Mapping) and all(type(key) is str for key in inputs):
        parts = {key: inputs_state(part, f"{name}.{i}", tensors) for i, (key, part) in enumerate(inputs.items())}
        return {"mapping": parts}
    if type(inputs) in (tuple, list):
        return {type(inputs).__name__: [inputs_state(part, f"{name}.{i}", tensors) for i, part in enumerate(inputs)]}
    if type(inputs) in (type(None), bool, int, float, str):
        return {"value": inputs}
    raise UnsupportedError(
        "training inputs made of tensors, numbers, strings, None, and tuples, lists and dicts of these",
        f"a {type(inputs).__name__} at {name}",
        "Full(view='weights'), KFAC() or Diagonal(), which keep no inputs",
    )


def inputs_from(spec: Json, tensors: Tensors, device: torch.device) -> Any:
    """The inputs that gave a spec."""
    match spec:
        case {"mapping": parts}:
            return {key: inputs_from(part, tensors, device) for key, part in parts.items()}
        case {"tuple": parts}:
            return tuple(inputs_from(part, tensors, device) for part in parts)
        case {"list": parts}:
            return [inputs_from(part, tensors, device) for part in parts]
        case {"value": value}:
            return value
        case _:
            return tensors.get(spec, device)


def tupled(state: Json) -> Json:
    """JSON knows lists alone; frozen records hold tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in state.items()}
