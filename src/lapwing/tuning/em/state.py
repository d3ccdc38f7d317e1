"""Where expectation maximisation has come to, and the file it is kept in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import DataError
from lapwing.ground.files.archive import Archive
from lapwing.linear.perturbation import Perturbation
from lapwing.posteriors import Step
from lapwing.tuning.hyperparameters import Hyperparameters

CHECKPOINT = Archive(
    "lapwing.em", "lapwing.em", 4, "EM(checkpoint=...)", "another checkpoint=, or deleting the file", oldest=4
)
"""The kind of file a state is kept in; its schema is raised whenever an older file would be misread."""


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

    @property
    def hyperparameters(self) -> Hyperparameters:
        """Those of the next expectation."""
        return Hyperparameters(self.precisions, self.scale)

    def check(self, precisions: Float[Tensor, " g"], weights: Float[Tensor, " d"], samples: int | None) -> None:
        """Refuse a state that another run has left: parts that are missing, of other sizes or types.

        Args:
            precisions: Prior precisions of the posterior.
            weights: Its weights.
            samples: Draws; ``None`` where there are none to be made.

        Raises:
            DataError: Naming the part.
        """
        each = tuple(precisions.shape)
        with_noise = (len(precisions) + 1,)
        _check_part("precisions", self.precisions, each, precisions.dtype)
        _check_part("scale", self.scale, (), precisions.dtype)
        stepped = bool(self.trace)
        if self.measured is not None or stepped or self.settled:
            _check_part("measured", self.measured, with_noise, precisions.dtype)
        if self.moves is not None or stepped:
            _check_part("moves", self.moves, with_noise, precisions.dtype)
        if self.weights is not None or stepped:
            _check_part("weights", self.weights, tuple(weights.shape), weights.dtype)
        if samples is None:
            return
        block = (len(weights), samples)
        data = None if self.noise is None else self.noise.data
        prior = None if self.noise is None else self.noise.prior
        _check_part("noise.data", data, block, weights.dtype)
        _check_part("noise.prior", prior, block, weights.dtype)
        _check_part("draws", self.draws, block, weights.dtype)


def _check_part(name: str, value: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse a part of a state that is missing, or of another shape or type."""
    if value is not None and tuple(value.shape) == shape and value.dtype == dtype:
        return
    expected = f"{name} of shape {list(shape)} and {dtype} in the checkpoint"
    got = "none" if value is None else f"{list(value.shape)} of {value.dtype}"
    raise DataError(expected, got, "another checkpoint=, or deleting the file")
