"""Whether a kernel, a mean and data go together: what is seen when they first meet, and what a failed solve says."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConvergenceWarning, DataError, DataWarning, NumericalError, ShapeError, warn
from lapwing.ground.results import Solution
from lapwing.methods.gp.kernels import Kernel
from lapwing.methods.gp.observations import Observations
from lapwing.methods.gp.trend import Mean


def check_suitable(kernel: Kernel, mean: Mean, data: Observations) -> None:
    """Refuse a kernel for other inputs, and a plane that the inputs do not span; warn of targets that never vary.

    Raises:
        ShapeError: If the kernel takes inputs of another width, or returns another shape.
        DataError: If observations do not tell a linear mean.
    """
    a, b = data.inputs[:2], data.inputs[:1]
    found = kernel(a, b)
    if found.shape != (len(a), 1):
        hint = "torch.exp(-torch.cdist(a, b)) as a model"
        raise ShapeError("a kernel from [n, p] and [m, p] to [n, m]", f"{list(found.shape)}", hint)
    if mean == "linear" and not _spanning(data.inputs):
        n, p = data.inputs.shape
        raise DataError(
            f"inputs that tell a linear mean: {p + 1} or more, no column constant or a sum of others",
            f"{n} observations of {p} columns that do not",
            "mean='constant'",
        )
    same = (data.targets == data.targets[0]).all(0)
    if len(data) > 1 and bool(same.any()):
        value = float(data.targets[0, same][0])
        warn(f"all targets of an output are {value:.6g}: tuning will find neither function nor noise", DataWarning)


def singular(error: NumericalError, noise: Float[Tensor, " n"]) -> NumericalError:
    """What a solve that failed says of the data; of a descent that diverged, what it says itself.

    Args:
        error: Its error.
        noise: Noise variance at each input.
    """
    if "definite" not in error.expected:
        return error
    return NumericalError(
        f"a kernel, and noise that keeps K + N away from singular ({error.expected})",
        f"a smallest noise variance of {float(noise.min()):.1e} ({error.got})",
        "a smaller precision of the likelihood, fewer inputs that are nearly alike, float64, or for Custom a function "
        "that is symmetric and positive definite",
    )


def check_solved(solution: Solution, cure: str) -> None:
    """Warn of a solve that ended early.

    Args:
        solution: What it found.
        cure: What to try where it was not interrupted.
    """
    if solution.converged:
        return
    stopped = solution.stopped == "interrupted"
    cure = "with_solver(solver), which goes on from here" if stopped else cure
    warn(
        f"a solve {'was interrupted' if stopped else 'ended'} after {solution.iterations} iterations with a "
        f"relative residual of {float(solution.residual.max()):.1e}. Try {cure}",
        ConvergenceWarning,
    )


def _spanning(inputs: Float[Tensor, "n p"]) -> bool:
    """Whether no column is a constant and a sum of others."""
    centred = inputs.double() - inputs.double().mean(0)
    lengths = centred.norm(dim=0)
    if not bool((lengths > 1e-12 * inputs.double().norm(dim=0)).all()):
        return False
    unit = centred / lengths
    return int(torch.linalg.matrix_rank(unit.mT @ unit, hermitian=True)) == inputs.shape[1]
