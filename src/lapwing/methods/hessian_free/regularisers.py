"""What refits are rewarded for: linear functionals r of the outputs, or of the weights."""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, chunks, count
from lapwing.ground.data.sources import Batch
from lapwing.ground.distributed import turn
from lapwing.ground.precision import wide, wide_like
from lapwing.jacobian.products.copies import Copies

PIECE = 4096
"""Examples evaluated together."""

R = TypeVar("R", bound="Regulariser")


@dataclass(frozen=True, eq=False)
class Regulariser(abc.ABC):
    """A functional ``r_f(θ)`` for each fit, which the fit maximises beside its likelihood and prior.

    What is a function of the outputs at the training data, ``InSample``, joins their loss batch by batch, by
    ``slope_on`` it; the rest is added by ``pull``.

    Args:
        omega: Coefficients of each functional, float64.
    """

    omega: Float[Tensor, "f *shape"]

    def slope_on(self, copies: Copies, batch: Batch) -> Float[Tensor, "f n *event c"] | None:
        """``∂r / ∂f`` at the outputs for a batch of training examples; ``None`` where it is no function of them."""
        return None

    def __len__(self) -> int:
        return len(self.omega)

    def take(self: R, which: Int[Tensor, " s"]) -> R:
        """Some of the functionals."""
        return replace(self, omega=self.omega[which])

    def times(self: R, scales: Float[Tensor, " f"]) -> R:
        """``λ r``, with a λ each."""
        return replace(self, omega=scales.view(-1, *(1,) * (self.omega.ndim - 1)) * self.omega)

    def pull(self, copies: Copies, weights: Float[Tensor, "f d"]) -> Float[Tensor, "f d"]:
        """Gradient of each r, apart from the training data, float64.

        Args:
            copies: The network.
            weights: Weights of each fit, in the network's dtype.
        """
        return torch.zeros(weights.shape, **wide_like(weights))

    def gradient(self, copies: Copies) -> Float[Tensor, "f d"]:
        """Gradient of each r at the trained weights, with the training data, float64.

        Args:
            copies: The network.
        """
        return self.pull(copies, copies.model.network.weights.expand(len(self), -1))


@final
@dataclass(frozen=True, eq=False)
class OutputSums(Regulariser):
    """``r(θ) = ωᵀ f(x̂; θ)`` over all outputs of some evaluation points, ω as ``[m, *event, c]``.

    Args:
        points: The points x̂.
        piece: Points evaluated together.
    """

    points: Inputs
    piece: int = PIECE

    def pull(self, copies: Copies, weights: Float[Tensor, "f d"]) -> Float[Tensor, "f d"]:
        """``Jᵀ ω``; each process has some of the points."""
        gradient = super().pull(copies, weights)
        data = copies.model.data
        first, each = turn(data.shared)
        pieces = chunks(self.points, min(self.piece, -(-count(self.points) // each)))
        for place, inputs in islice(pieces, first, None, each):
            gradient += wide(copies.pull(weights, inputs, self.omega[:, place].to(weights)))
        return data.added(gradient)


@final
@dataclass(frozen=True, eq=False)
class WeightSums(Regulariser):
    """``r(θ) = ωᵀ θ`` (McInerney and Kallus 2024, equation 31, with ω the signs of the trained weights)."""

    def pull(self, copies: Copies, weights: Float[Tensor, "f d"]) -> Float[Tensor, "f d"]:
        """``ω``."""
        return self.omega


@final
@dataclass(frozen=True, eq=False)
class InSample(Regulariser):
    """``r(θ) = Σ_i ωᵀ f(x_i; θ)`` over the training data, or ``Σ_i ωᵀ |f(x_i; θ)|``, ω as ``[c]``.

    With 1/n at one output these are equations 28, the signs those of the trained outputs, and 29: for Gaussian noise
    ``L(θ; y) − λ r(θ)`` is the loss of the targets ``y_i + λ σ² ω`` but for a constant.

    Args:
        signed: Whether the outputs are taken by their absolute values.
    """

    signed: bool

    def slope(self, trained: Float[Tensor, "n *event c"]) -> Float[Tensor, "f n *event c"]:
        """``∂r / ∂f`` at the outputs for a batch of training examples: ``ω``, or ``ω sign f``.

        Args:
            trained: Outputs at the trained weights.
        """
        omega = self.omega.to(trained).view(len(self.omega), *(1,) * (trained.ndim - 1), -1)
        return omega * (trained.sign() if self.signed else torch.ones_like(trained))

    def slope_on(self, copies: Copies, batch: Batch) -> Float[Tensor, "f n *event c"]:
        """See ``Regulariser.slope_on``; a forward pass."""
        trained = copies.outputs(copies.model.network.weights[None], batch.inputs)[0]
        return self.slope(trained)

    def gradient(self, copies: Copies) -> Float[Tensor, "f d"]:
        """See ``Regulariser.gradient``; a pass over the training data."""
        data = copies.model.data
        weights = copies.model.network.weights.expand(len(self), -1)
        total = super().gradient(copies)
        for batch in data:
            total += copies.pull(weights, batch.inputs, self.slope_on(copies, batch))
        return data.added(total)
