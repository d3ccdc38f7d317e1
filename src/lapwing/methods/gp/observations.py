"""What a Gaussian process is conditioned on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.data import Data, Source, check_finite, check_inputs
from lapwing.ground.errors import DataError, ShapeError


@final
@dataclass(frozen=True, eq=False)
class Observations:
    """Inputs, targets and how noisy each is.

    Args:
        inputs: X, ``[n, p]``.
        targets: y, ``[n, c]``.
        relative: Noise variance of each observation over ``1/ρ``, ``[n]``.
    """

    inputs: Float[Tensor, "n p"]
    targets: Float[Tensor, "n c"]
    relative: Float[Tensor, " n"]

    @classmethod
    def of(cls, data: Source, noise: Float[Tensor, " n"] | None = None) -> Observations:
        """What a pair of tensors or a loader holds.

        Raises:
            DataError: If there are no data, or they are not finite, or a noise is not positive.
            ShapeError: If inputs or targets have other shapes.
        """
        batches = list(Data(data))
        inputs, y = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("inputs", "targets"))
        if inputs.ndim != 2 or not inputs.is_floating_point():
            got = f"{inputs.dtype} {list(inputs.shape)}"
            raise ShapeError("inputs of shape [n, p], floating point", got, "x[:, None].float()")
        targets = y[:, None] if y.ndim == 1 else y
        if targets.ndim != 2:
            raise ShapeError("targets of shape [n] or [n, c]", f"{list(y.shape)}", "y.flatten(1)")
        check_inputs(inputs)
        check_finite(targets, "targets", "leaving out observations without a target")
        ones = inputs.new_ones(len(inputs))
        relative = ones if noise is None else torch.as_tensor(noise).to(inputs)
        if relative.shape != ones.shape or not bool((relative > 0).all()):
            got = f"shape {list(relative.shape)}, the smallest {float(relative.min()):.3g}"
            raise DataError(f"{len(ones)} positive noise variances", got, "noise=sigma**2 * likelihood.precision")
        return cls(inputs, targets.to(inputs), relative)

    def __len__(self) -> int:
        """N."""
        return len(self.inputs)

    @property
    def outputs(self) -> int:
        """C."""
        return self.targets.shape[1]

    def select(self, index: Int[Tensor, " m"]) -> Observations:
        """Some of them, in float64.

        Args:
            index: Which.
        """
        return Observations(*(part[index].double() for part in (self.inputs, self.targets, self.relative)))

    def joined(self, more: Observations) -> Observations:
        """These and then others, as these are."""
        pairs = zip((self.inputs, self.targets, self.relative), (more.inputs, more.targets, more.relative), strict=True)
        return Observations(*(torch.cat([mine, theirs.to(mine)]) for mine, theirs in pairs))

    def check(self, x: Tensor) -> Float[Tensor, "m p"]:
        """New inputs, as these are.

        Raises:
            DataError: If they are not finite.
            ShapeError: If they have another shape.
        """
        p = self.inputs.shape[1]
        if x.ndim != 2 or x.shape[1] != p:
            raise ShapeError(f"inputs of shape [m, {p}]", f"{list(x.shape)}", "x[:, None] for a single dimension")
        placed = x.to(self.inputs)
        check_inputs(placed)
        return placed
