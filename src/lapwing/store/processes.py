"""What a file holds of a Gaussian process and of functions drawn from one: no network, and so nothing to bind it to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.checks import check_finite
from lapwing.ground.errors import DataError
from lapwing.ground.files.archive import Json, Tensors
from lapwing.ground.files.records import REPAIR
from lapwing.ground.results import Solution
from lapwing.linear.mode.loss import Mode
from lapwing.linear.solvers import Cholesky
from lapwing.methods.gp import FunctionSamples, Kernel, LaplaceProcess, PriorFunctions, Process
from lapwing.methods.gp.kernels import check_dimensions
from lapwing.methods.gp.settings import Settings
from lapwing.methods.gp.trend import Mean, Trend
from lapwing.store.fits import named, records

Kernels: TypeAlias = Process | LaplaceProcess | FunctionSamples
"""What a file may hold that stands on a kernel."""

KINDS = named(Process, LaplaceProcess, FunctionSamples)
"""The same by name."""


@final
@dataclass(frozen=True, eq=False)
class FunctionFields:
    """The fields of ``FunctionSamples`` that a process does not have; random features are drawn again."""

    weights: tuple[Float[Tensor, "_ s"], ...]
    representers: Float[Tensor, "n k"]
    slopes: Float[Tensor, "q k"]
    solution: Solution
    features: int
    seed: int


@final
@dataclass(frozen=True, eq=False)
class Base:
    """What functions stand on."""

    kernel: Kernel | tuple[Kernel, ...]
    inputs: Float[Tensor, "n p"]
    mean: Mean
    outputs: int


def process_state(saved: Kernels, tensors: Tensors) -> Json:
    """Everything: data, choices, and the solves, which are made now if they were not.

    Raises:
        UnsupportedError: If the kernel or the solver is not lapwing's.
    """
    state = records(tensors).state
    if isinstance(saved, FunctionSamples):
        base = Base(saved.kernel, saved.inputs, saved.trend.kind, saved.outputs)
        return {"base": state(base, "base"), "functions": state(_drawn(saved), "functions")}
    if isinstance(saved, LaplaceProcess):
        return state(replace(saved, start=None)) | {"mode": state(saved.mode, "mode")}
    own = records(tensors, given={Settings: None, tuple[Solution, ...]: None}).state(saved)
    if "functions" in vars(saved) or not isinstance(saved.solver, Cholesky):
        own["functions"] = state(_drawn(saved.functions), "functions")
    return own | {"settings": state(saved.settings, "settings"), "answers": state(saved.answers, "answers")}


def process_from(header: Json, tensors: Tensors, device: torch.device | str) -> Kernels:
    """What gave a state.

    Raises:
        DataError: If nothing gives it, or its random features cannot be drawn again.
    """
    read = records(tensors, device).read
    if header["posterior"] == "FunctionSamples":
        base: Base = read(Base, header.get("base"), "base")
        return _functions(read(FunctionFields, header.get("functions"), "functions"), base, header)
    if header["posterior"] == "LaplaceProcess":
        found: LaplaceProcess = read(LaplaceProcess, header, "")
        mode: Mode = read(Mode, header.get("mode"), "mode")
        check_dimensions(found.kernel, found.data.inputs)
        _check(mode.weights[:, None], "the mode", (len(found.data) * found.width, 1))
        vars(found)["mode"] = mode
        return found
    settings = read(Settings, header.get("settings"), "settings")
    process: Process = records(tensors, device, {Settings: settings, tuple[Solution, ...]: ()}).read(
        Process, header, ""
    )
    base = Base(process.kernel, process.seen.inputs, settings.mean, process.data.outputs)
    for kernel in process.kernels:
        check_dimensions(kernel, base.inputs)
    answers: Solution = read(Solution, header.get("answers"), "answers")
    width = base.outputs + len(process.groups) * process.trend(base.inputs[:1]).shape[1]
    _check(answers.value, "answers", (len(base.inputs), width))
    vars(process)["answers"] = answers
    if "functions" in header:
        vars(process)["functions"] = _functions(read(FunctionFields, header["functions"], "functions"), base, header)
    return process


def _drawn(functions: FunctionSamples) -> FunctionFields:
    prior, solution = functions.prior, functions.solution
    return FunctionFields(prior.weights, functions.representers, functions.slopes, solution, prior.count, prior.seed)


def _functions(drawn: FunctionFields, base: Base, header: Json) -> FunctionSamples:
    """The functions of their own coefficients and of features drawn again.

    The weights, which follow the features in the stream of random numbers, tell whether it is the same stream.
    """
    k, trend = drawn.representers.shape[1], Trend(base.mean)
    for name, rows in {"representers": len(base.inputs), "slopes": trend(base.inputs[:1]).shape[1]}.items():
        _check(getattr(drawn, name), f"functions.{name}", (rows, k))
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


def _check(value: Tensor, at: str, shape: tuple[int, int]) -> None:
    """Refuses solved coefficients of another shape, or that are not finite."""
    if value.shape != shape:
        raise DataError(f"{at} of shape {list(shape)}", f"{list(value.shape)}", REPAIR)
    check_finite(value, at, REPAIR)
