"""What a file holds of a Gaussian process and of functions drawn from one: no network, and so nothing to bind it to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.gp import FunctionSamples, GPPosterior, Kernel, LaplaceGPPosterior, PriorFunctions, StudentTGPPosterior
from lapwing.gp.kernels.base import check_dimensions
from lapwing.gp.laplace import LaplaceProcess
from lapwing.gp.regression.settings import Settings
from lapwing.gp.trend import Mean, Trend
from lapwing.ground.data.checks import check_finite
from lapwing.ground.errors import DataError
from lapwing.ground.files.archive import Json, Tensors
from lapwing.ground.files.records import REPAIR
from lapwing.ground.results import Solution
from lapwing.linear.mode.loss import Mode
from lapwing.store.families import named, records

Processes: TypeAlias = GPPosterior | LaplaceProcess | FunctionSamples
"""What a file may hold that stands on a kernel."""

KINDS = named(GPPosterior, LaplaceGPPosterior, StudentTGPPosterior, FunctionSamples)
"""The same by name."""


@final
@dataclass(frozen=True, eq=False)
class FunctionFields:
    """The fields of ``FunctionSamples`` that a posterior does not have; random features are drawn again."""

    weights: tuple[Float[Tensor, "_ s"], ...]
    representers: Float[Tensor, "n k"]
    slopes: Float[Tensor, "q k"]
    solution: Solution
    features: int
    seed: int

    @classmethod
    def of(cls, functions: FunctionSamples) -> FunctionFields:
        """Those of some functions."""
        prior = functions.prior
        return cls(
            weights=prior.weights,
            representers=functions.representers,
            slopes=functions.slopes,
            solution=functions.solution,
            features=prior.count,
            seed=prior.seed,
        )


@final
@dataclass(frozen=True, eq=False)
class Base:
    """What functions stand on."""

    kernel: Kernel | tuple[Kernel, ...]
    inputs: Float[Tensor, "n p"]
    mean: Mean
    outputs: int


def process_state(saved: Processes, tensors: Tensors) -> Json:
    """Everything: data, choices, and the solves, which are made now if they were not.

    Raises:
        UnsupportedError: If the kernel or the solver is not lapwing's.
    """
    return WRITERS[type(saved).__name__](saved, tensors)


def process_from(header: Json, tensors: Tensors, device: torch.device | str) -> Processes:
    """What gave a state.

    Raises:
        DataError: If nothing gives it, or its random features cannot be drawn again.
    """
    return READERS[header["posterior"]](header, tensors, device)


def _functions_state(saved: FunctionSamples, tensors: Tensors) -> Json:
    state = records(tensors).state
    base = Base(saved.kernel, saved.inputs, saved.trend.kind, saved.outputs)
    return {"base": state(base, "base"), "functions": state(FunctionFields.of(saved), "functions")}


def _functions_from(header: Json, tensors: Tensors, device: torch.device | str) -> FunctionSamples:
    read = records(tensors, device).read
    base: Base = read(Base, header.get("base"), "base")
    return _functions(read(FunctionFields, header.get("functions"), "functions"), base, header)


def _laplace_state(saved: LaplaceProcess, tensors: Tensors) -> Json:
    state = records(tensors).state
    return state(replace(saved, start=None)) | {"mode": state(saved.mode, "mode")}


def _laplace_from(header: Json, tensors: Tensors, device: torch.device | str) -> LaplaceProcess:
    read = records(tensors, device).read
    found: LaplaceProcess = read(KINDS[header["posterior"]], header, "")
    mode: Mode = read(Mode, header.get("mode"), "mode")
    check_dimensions(found.kernel, found.data.inputs)
    _check(mode.weights[:, None], "the mode", (len(found.data) * found.width, 1))
    return found.with_mode(mode)


def _regression_state(saved: GPPosterior, tensors: Tensors) -> Json:
    state = records(tensors).state
    own = records(tensors, given={Settings: None, tuple[Solution, ...]: None}).state(saved)
    if saved.solves.functions is not None or not saved.solver.exact:
        own["functions"] = state(FunctionFields.of(saved.functions), "functions")
    return own | {"settings": state(saved.settings, "settings"), "solution": state(saved.solution, "solution")}


def _regression_from(header: Json, tensors: Tensors, device: torch.device | str) -> GPPosterior:
    read = records(tensors, device).read
    settings = read(Settings, header.get("settings"), "settings")
    elsewhere = {Settings: settings, tuple[Solution, ...]: ()}
    found: GPPosterior = records(tensors, device, elsewhere).read(GPPosterior, header, "")
    base = Base(found.kernel, found.distinct.inputs, settings.mean, found.data.outputs)
    for kernel in found.kernels:
        check_dimensions(kernel, base.inputs)
    solution: Solution = read(Solution, header.get("solution"), "solution")
    width = base.outputs + len(found.system.groups) * found.system.slopes
    _check(solution.value, "solution", (len(base.inputs), width))
    functions = None
    if "functions" in header:
        functions = _functions(read(FunctionFields, header["functions"], "functions"), base, header)
    return found.with_solves(solution, functions)


WRITERS: dict[str, Callable[[Any, Tensors], Json]] = {
    "GPPosterior": _regression_state,
    "LaplaceGPPosterior": _laplace_state,
    "StudentTGPPosterior": _laplace_state,
    "FunctionSamples": _functions_state,
}
"""How each kind is written, by its name."""

READERS: dict[str, Callable[[Json, Tensors, torch.device | str], Processes]] = {
    "GPPosterior": _regression_from,
    "LaplaceGPPosterior": _laplace_from,
    "StudentTGPPosterior": _laplace_from,
    "FunctionSamples": _functions_from,
}
"""How each is read."""


def _functions(drawn: FunctionFields, base: Base, header: Json) -> FunctionSamples:
    """The functions of their own coefficients and of features drawn again.

    The weights, which follow the features in the stream of random numbers, tell whether it is the same stream.
    """
    k = drawn.representers.shape[1]
    trend = Trend(base.mean)
    _check(drawn.representers, "functions.representers", (len(base.inputs), k))
    _check(drawn.slopes, "functions.slopes", (trend(base.inputs[:1]).shape[1], k))
    weights = min((len(each) for each in drawn.weights), default=0)
    if drawn.features > weights:  # each has a weight of its own or several
        expected = f"at most {weights} features, as many as have weights"
        raise DataError(expected, f"functions.features = {drawn.features}", REPAIR)
    generator = torch.Generator().manual_seed(drawn.seed)
    prior = PriorFunctions.drawn(base.kernel, base.inputs.to(drawn.representers), k, drawn.features, generator)
    same = len(prior.weights) == len(drawn.weights) and all(
        now.shape == then.shape and torch.allclose(now, then)
        for now, then in zip(prior.weights, drawn.weights, strict=True)
    )
    if not same:
        raise DataError(
            "the random features that the functions were drawn with",
            f"others: torch {torch.__version__} draws other numbers from seed {drawn.seed}",
            f"torch {header.get('versions', {}).get('torch')}, which wrote the file, or drawing functions again",
        )
    return FunctionSamples(
        base.kernel,
        base.inputs,
        trend,
        prior,
        drawn.representers,
        drawn.slopes,
        base.outputs,
        drawn.solution,
    )


def _check(value: Tensor, name: str, shape: tuple[int, int]) -> None:
    """Refuses solved coefficients of another shape, or that are not finite."""
    if value.shape != shape:
        raise DataError(f"{name} of shape {list(shape)}", f"{list(value.shape)}", REPAIR)
    check_finite(value, name, REPAIR)
