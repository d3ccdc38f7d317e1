"""What a refit is rewarded for: linear functionals r of the outputs, or of the weights."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.data import chunks
from lapwing.ground.types import Inputs
from lapwing.jacobian.network.copies import Copies

PIECE = 4096
"""Examples evaluated together."""


class Regulariser(abc.ABC):
    """Some functionals ``r_s(θ)``; fit number f maximises ``λ_f r_s(θ)`` for the member s that it is given.

    What is a function of the outputs at the training data joins their loss batch by batch; the rest is added by
    ``pull``.
    """

    in_sample: ClassVar[bool] = False
    """Whether r is a function of the outputs at the training data."""

    @property
    @abc.abstractmethod
    def members(self) -> int:
        """How many functionals there are."""

    def pull(
        self, copies: Copies, weights: Float[Tensor, "f d"], members: Int[Tensor, " f"]
    ) -> tuple[Float[Tensor, "f d"], Float[Tensor, " f"]] | None:
        """Gradient and value of each fit's r, apart from the training data; ``None`` where there is no such part.

        Args:
            copies: The network.
            weights: Weights of each fit, in the network's dtype.
            members: The functional of each fit.
        """
        return None

    def slope(self, members: Int[Tensor, " f"], trained: Float[Tensor, "n *event c"]) -> Float[Tensor, "f n *event c"]:
        """``∂r / ∂f`` at the outputs for a batch of training examples, where ``in_sample``.

        Args:
            members: The functional of each fit.
            trained: Outputs at the trained weights.
        """
        raise NotImplementedError

    def moved(
        self, members: Int[Tensor, " f"], scales: Float[Tensor, " f"], like: Tensor
    ) -> Float[Tensor, "f c"] | None:
        """What is added to the training targets of each fit in place of the reward; ``None`` for nothing."""
        return None


@final
@dataclass(frozen=True, eq=False)
class OutputSums(Regulariser):
    """``r_s(θ) = ω_sᵀ f(x̂; θ)`` over all outputs of some evaluation points.

    Args:
        points: The points x̂.
        omega: ω, ``[s, m, *event, c]``.
    """

    points: Inputs
    omega: Float[Tensor, "s m *event c"]

    @property
    def members(self) -> int:
        """One for each ω."""
        return len(self.omega)

    def pull(
        self, copies: Copies, weights: Float[Tensor, "f d"], members: Int[Tensor, " f"]
    ) -> tuple[Float[Tensor, "f d"], Float[Tensor, " f"]]:
        """``Jᵀ ω`` and ``ωᵀ f``."""
        gradient = torch.zeros(weights.shape, dtype=torch.float64, device=weights.device)
        value = gradient.new_zeros(len(weights))
        for place, inputs in chunks(self.points, PIECE):
            part = copies.pull(weights, inputs, self.omega[members][:, place].to(weights))
            gradient += part[0]
            value += part[1]
        return gradient, value


@final
@dataclass(frozen=True, eq=False)
class WeightSums(Regulariser):
    """``r_s(θ) = z_sᵀ θ`` (McInerney and Kallus 2024, equation 31, with z the signs of the trained weights).

    Args:
        z: ``[s, d]``.
    """

    z: Float[Tensor, "s d"]

    @property
    def members(self) -> int:
        """One for each z."""
        return len(self.z)

    def pull(
        self, copies: Copies, weights: Float[Tensor, "f d"], members: Int[Tensor, " f"]
    ) -> tuple[Float[Tensor, "f d"], Float[Tensor, " f"]]:
        """``z`` and ``zᵀ θ``."""
        z = self.z[members].double()
        return z, (z * weights).sum(1)


@final
@dataclass(frozen=True, eq=False)
class InSample(Regulariser):
    """``r_k(θ) = 1/n Σ_i |f_k(x_i; θ)|`` over the training data (equation 28), the signs those of the trained outputs.

    Args:
        examples: n.
        outputs: c.
    """

    in_sample = True

    examples: int
    outputs: int

    @property
    def members(self) -> int:
        """One for each output."""
        return self.outputs

    def slope(self, members: Int[Tensor, " f"], trained: Float[Tensor, "n *event c"]) -> Float[Tensor, "f n *event c"]:
        """``sign f_k / n``."""
        return own_output(members, self.outputs, trained) * trained.sign() / self.examples


@final
@dataclass(frozen=True, eq=False)
class Augmented(Regulariser):
    """``r_k(θ) = 1/n Σ_i f_k(x_i; θ)`` over the training data, as a shift of the targets by ``λ σ²_k / n`` (eq. 29).

    Completing the square: for Gaussian noise the loss and the reward together are the loss of the shifted targets, up
    to a constant. Model and loop stay as they are.

    Args:
        examples: n.
        variances: ``σ²_k`` of each output, for one target: divided by the weight of the likelihood.
    """

    in_sample = True

    examples: int
    variances: Float[Tensor, " c"]

    @property
    def members(self) -> int:
        """One for each output."""
        return len(self.variances)

    def slope(self, members: Int[Tensor, " f"], trained: Float[Tensor, "n *event c"]) -> Float[Tensor, "f n *event c"]:
        """``1 / n`` at output k."""
        return own_output(members, self.members, trained).expand(-1, *trained.shape) / self.examples

    def moved(self, members: Int[Tensor, " f"], scales: Float[Tensor, " f"], like: Tensor) -> Float[Tensor, "f c"]:
        """``λ σ²_k / n`` at output k."""
        own = torch.nn.functional.one_hot(members, self.members).double()
        return (scales[:, None] * own * self.variances / self.examples).to(like)


def own_output(
    members: Int[Tensor, " f"], outputs: int, like: Float[Tensor, "n *event c"]
) -> Float[Tensor, "f *ones c"]:
    """1 at the output that each fit is about, 0 at the others."""
    own = torch.nn.functional.one_hot(members, outputs).to(like)
    return own.view(len(members), *(1,) * (like.ndim - 1), outputs)
