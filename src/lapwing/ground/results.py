"""Numbers that travel with what is needed to trust them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, cast, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.precision import moved, wide

Stopped: TypeAlias = Literal["converged", "iterations", "seconds", "stagnated", "breakdown", "interrupted"]
"""Why an iteration ended: at its tolerance, its limit of steps or of seconds, where rounding lets it go no further, out
of room, by Ctrl-C."""

TINY = 1e-5
"""Standard errors below which a difference is written by its exponent."""


class Ended:
    """What an iteration came to."""

    stopped: Stopped

    @property
    def converged(self) -> bool:
        """Whether it met its tolerance."""
        return self.stopped == "converged"


@final
@dataclass(frozen=True, eq=False)
class Solution(Ended):
    """What a solver returns: the value, how far it got, and what it cost.

    Args:
        value: The solution ``x`` of ``A x = b``, shape ``[d]`` or ``[d, k]``; several shifts lead, ``[q, d, k]``.
        residual: Relative residual ``|b - A x| / |b|`` of each column, float64; 0 where ``b`` is 0.
        iterations: Steps taken, each one product with a block of columns.
        matvecs: Columns that were multiplied by ``A``, in all.
        stopped: Why the iteration ended.
        error: How far what the value predicts is from what the solution predicts, root mean square over the data, as a
            part of the scale of the right-hand sides or of the solution's predictions: one for each column, float64.
            What descends by random parts of the data is judged by it; ``None`` for other solvers.
    """

    value: Float[Tensor, "*shape"]
    residual: Float[Tensor, "*columns"]
    iterations: int
    matvecs: int
    stopped: Stopped
    error: Float[Tensor, "*columns"] | None = None

    def to(self, device: torch.device | str) -> Solution:
        """The solution on another device.

        Args:
            device: Where to.
        """
        error = None if self.error is None else moved(self.error, device)
        return replace(self, value=moved(self.value, device), residual=moved(self.residual, device), error=error)

    @property
    def distance(self) -> str:
        """How far from the solution its worst column is, in words.

        Example:
            >>> residual, error = torch.tensor([0.004]), torch.tensor([0.113])
            >>> Solution(torch.ones(2, 1), residual, 20, 20, "iterations", error).distance
            'a relative residual of 4.0e-03 and predictions off by 11 % of their scale'
        """
        residual = f"a relative residual of {float(self.residual.max()):.1e}"
        if self.error is None or not bool(self.error.isfinite().all()):
            return residual
        return f"{residual} and predictions off by {100 * float(self.error.max()):.2g} % of their scale"


def joined_solutions(parts: list[Solution]) -> Solution:
    """The solutions of consecutive blocks of columns as one."""
    worst = next((part for part in parts if not part.converged), parts[0])
    errors = [part.error for part in parts if part.error is not None]
    return Solution(
        value=torch.cat([part.value for part in parts], dim=-1),
        residual=torch.cat([part.residual for part in parts]),
        error=None if any(part.error is None for part in parts) else torch.cat(errors),
        iterations=max(part.iterations for part in parts),
        matvecs=sum(part.matvecs for part in parts),
        stopped=worst.stopped,
    )


def parted(whole: Solution, columns: int) -> tuple[Solution, Solution]:
    """The solutions of the first columns and of the others, each with what all of them cost.

    Args:
        whole: Of a block.
        columns: How many are first.
    """

    def part(which: slice) -> Solution:
        error = None if whole.error is None else whole.error[..., which]
        return replace(whole, value=whole.value[..., which], residual=whole.residual[..., which], error=error)

    return part(slice(columns)), part(slice(columns, None))


@final
@dataclass(frozen=True)
class Estimate:
    """A number that came from random probes, with its standard error.

    Args:
        value: The estimate.
        stderr: Standard error of ``value``; 0 where the number is exact.
        samples: Independent probes behind it.

    Example:
        >>> Estimate(value=2.0, stderr=0.1, samples=32)
        Estimate(value=2.0, stderr=0.1, samples=32)
        >>> f"{Estimate(2.0, 0.1, 32):.2f}"
        '2.00 ± 0.10'
    """

    value: float
    stderr: float
    samples: int

    @classmethod
    def of(cls, values: Float[Tensor, " samples"]) -> Estimate:
        """The mean of independent values; with a single one its error is unknown, infinite.

        Example:
            >>> import torch
            >>> Estimate.of(torch.tensor([1.0, 3.0]))
            Estimate(value=2.0, stderr=1.0, samples=2)
        """
        count = len(values)
        stderr = float(wide(values).std() / count**0.5) if count > 1 else math.inf
        return cls(float(wide(values).mean()), stderr, count)

    def __float__(self) -> float:
        return self.value

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} ± {self.stderr:{spec}}" if spec else str(self)


def signed(value: float, stderr: float | None) -> str:
    """A difference with its sign, and its standard error to two digits, which say to how many it is known itself.

    Args:
        value: The difference.
        stderr: Its standard error; ``None`` where it is not known, then the difference has three digits.

    Example:
        >>> signed(-0.03301, 0.0043), signed(-0.00004, 0.0021), signed(12.34, 3.21), signed(0.25, None)
        ('−0.0330 ± 0.0043', '0.0000 ± 0.0021', '+12.3 ± 3.2', '+0.25')
        >>> signed(1.6e-8, 4.7e-8)
        '+1.6e−08 ± 4.7e−08'
    """
    if stderr is None or not 0 < stderr < math.inf:
        shown = f"{value:+.3g}" if value else "0"
        return shown.replace("-", "−") + ("" if stderr is None else f" ± {stderr:g}")
    if stderr < TINY:
        return f"{value:+.1e} ± {stderr:.1e}".replace("-", "−")
    decimals = max(0, 1 - math.floor(math.log10(stderr)))
    rounded = round(value, decimals)
    if rounded == 0:
        return f"{0:.{decimals}f} ± {stderr:.{decimals}f}"
    return f"{rounded:+.{decimals}f} ± {stderr:.{decimals}f}".replace("-", "−")


class Shown:
    """A dataclass of tensors that prints their shapes and ranges, never all their numbers."""

    def __repr__(self) -> str:
        found = [(each.name, getattr(self, each.name)) for each in fields(cast(Any, self)) if each.repr]
        return f"{type(self).__name__}({', '.join(shown_field(*each) for each in found if each[1] is not None)})"


def shown_field(name: str, value: object) -> str:
    """A field as it is printed.

    Example:
        >>> shown_field("mean", torch.tensor([[1.0, 3.0]]))
        'mean [1, 2] from 1 to 3'
    """
    if not isinstance(value, Tensor):
        return f"{name}={value!r}"
    known = value.detach()
    span = f" from {float(known.min()):.3g} to {float(known.max()):.3g}" if known.numel() else ""
    return f"{name} {list(value.shape)}{span}"
