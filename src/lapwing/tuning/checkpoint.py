"""Where expectation maximisation has come to, and the kind of file it is kept in after every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from lapwing.ground.archive import Archive
from lapwing.linear.problem import Perturbation
from lapwing.posteriors import Step

CHECKPOINT = Archive(
    "lapwing.em", "lapwing.em", 4, "EM(checkpoint=...)", "another checkpoint=, or deleting the file", oldest=4
)
"""The kind of file; its schema is raised whenever an older file would be misread."""


@final
@dataclass(frozen=True, eq=False)
class State:
    """Where expectation maximisation has come to.

    Args:
        precisions: Prior precisions of the next expectation.
        scale: Its relative noise precision.
        trace: Steps so far.
        measured: Prior precisions, then the relative noise precision, of the last of them.
        moves: How far it led to moving the log precisions, the noise's last.
        settled: Whether no more is needed.
        weights: The last mode w*.
        noise: The noise of the draws; ``None`` where there are none.
        draws: The last draws, in units in which the prior is standard normal.
    """

    precisions: Float[Tensor, " g"]
    scale: Float[Tensor, ""]
    trace: tuple[Step, ...] = ()
    measured: Float[Tensor, " m"] | None = None
    moves: Float[Tensor, " m"] | None = None
    settled: bool = False
    weights: Float[Tensor, " d"] | None = None
    noise: Perturbation | None = None
    draws: Float[Tensor, "d k"] | None = None
