"""Where in the weights a linear model's output Hessian is taken: at a point, or along a ray."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data import count, tensors
from lapwing.ground.types import Inputs
from lapwing.likelihoods import Likelihood
from lapwing.linear.model import Chunk


@final
@dataclass(eq=False)
class Shift:
    """Weights w other than those the model was made linear at, with its outputs ``h(w, ·)`` there.

    What was computed of them is kept chunk by chunk, and found again where a later pass over the data has the same
    chunk, whatever its place: a loader that shuffles costs time and nothing else.

    Args:
        change: What J is multiplied with: ``w - w̃``, or w itself for a model without its offset.
        affine: Whether the outputs at w̃ are added.
        memory: Bytes of outputs that may be kept.
    """

    change: Float[Tensor, " d"]
    affine: bool
    memory: int
    kept: dict[bytes, Tensor] = field(default_factory=dict, repr=False)

    def outputs(self, chunk: Chunk) -> Float[Tensor, "n *event c"]:
        """``h(w, ·)`` of a chunk."""
        return self.known(signature(chunk.inputs), chunk)

    def known(self, key: bytes, chunk: Chunk) -> Float[Tensor, "n *event c"]:
        """The same for a chunk whose signature is at hand."""
        if key in self.kept:
            return self.kept[key]
        h = chunk.at(self.change, self.affine)
        if (len(self.kept) + 1) * h.numel() * h.element_size() <= self.memory:
            self.kept[key] = h
        return h


@final
@dataclass(frozen=True, eq=False)
class Ray:
    """The outputs ``h(w + t p, ·) = h + t J p`` of all data along a direction.

    Args:
        shift: w.
        step: p.
        rays: The signature of each chunk, its h, ``J p`` and targets.
    """

    shift: Shift
    step: Float[Tensor, " d"]
    rays: tuple[tuple[bytes, Tensor, Tensor, Tensor], ...]

    @classmethod
    def of(cls, chunks: Iterable[Chunk], shift: Shift, step: Float[Tensor, " d"]) -> Ray | None:
        """One pass over the data; ``None`` where the outputs of all of them do not fit.

        Args:
            chunks: The data.
            shift: w, and the bytes there are.
            step: p.
        """
        rays: list[tuple[bytes, Tensor, Tensor, Tensor]] = []
        room = shift.memory
        for chunk in chunks:
            key = signature(chunk.inputs)
            h, moved = shift.known(key, chunk), chunk.push(step[:, None])[0]
            room -= 2 * h.numel() * h.element_size()
            if room < 0:
                return None
            rays.append((key, h, moved, chunk.targets))
        return cls(shift, step, tuple(rays))

    def loss(self, likelihood: Likelihood, length: float) -> float:
        """The negative log likelihood at ``t = length``, nats."""
        return float(sum(likelihood.nll(h + length * moved, y).double().sum() for _, h, moved, y in self.rays))

    def slope(self, likelihood: Likelihood, length: float) -> float:
        """The derivative of the negative log likelihood in t, at ``t = length``."""
        parts = (
            likelihood.score(h + length * moved, y).double().flatten() @ moved.double().flatten()
            for _, h, moved, y in self.rays
        )
        return -float(sum(parts))

    def end(self, length: float) -> Shift:
        """``w + t p``, its outputs at hand."""
        kept = {key: h + length * moved for key, h, moved, _ in self.rays}
        return Shift(self.shift.change + length * self.step, self.shift.affine, self.shift.memory, kept)


def signature(inputs: Inputs) -> bytes:
    """One number an example and tensor that hardly any other example has: a projection on fixed random directions.

    Example:
        >>> x = torch.rand(3, 4)
        >>> signature(x) == signature(x.clone()), signature(x) == signature(x.flip(0))
        (True, False)
    """
    n, parts = count(inputs), []
    for x in tensors(inputs):
        rows = x.reshape(n if x.ndim and len(x) == n else 1, -1).double()
        weights = torch.arange(1, rows.shape[1] + 1, dtype=torch.float64, device=x.device).square().cos()
        parts.append((rows * weights).sum(1))
    return torch.cat(parts).cpu().numpy().tobytes()
