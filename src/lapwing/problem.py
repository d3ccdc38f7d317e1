"""The Gaussian linear model around a trained network, touched through products alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing import probes
from lapwing.curvature.hessian import GGNProduct
from lapwing.curvature.layers import Survey
from lapwing.curvature.network import Network
from lapwing.curvature.root import GGNRoot
from lapwing.data import Data
from lapwing.likelihoods import Likelihood
from lapwing.linalg import Diagonal, FunctionOperator, LowRank, Operator, Structured


@final
@dataclass(frozen=True, eq=False)
class Training:
    """A network and the data it was trained on.

    Args:
        network: The network.
        survey: What is known of its layers.
        data: The training data.
        likelihood: The likelihood with which the curvature is computed.
        examples: How many examples there are.
    """

    network: Network
    survey: Survey
    data: Data
    likelihood: Likelihood
    examples: int


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """A posterior precision ``Λ = s G + A`` with ``G = R Rᵀ``, known by products with G, R and A.

    Args:
        curvature: G, ``[d, d]``.
        root: R, ``[d, r]``.
        prior: A.
        scale: s, the noise precision relative to the one G was computed with.
        training: Where G comes from; ``None`` for a linear model without a network.
        kept: Preconditioners that were built for it, by recipe.

    Example:
        >>> from lapwing.linalg import LowRank
        >>> rows = LowRank(torch.tensor([[1.0, 1.0], [0.0, 2.0]]))
        >>> problem = Problem(rows, rows.root(), Diagonal(torch.ones(2)))
        >>> problem.precision.dense()
        tensor([[3., 2.],
                [2., 5.]])
    """

    curvature: Operator
    root: Operator
    prior: Diagonal
    scale: float = 1.0
    training: Training | None = None
    kept: dict[object, Structured] = field(default_factory=dict)

    @classmethod
    def of(cls, training: Training, prior: Diagonal, scale: float = 1.0) -> Problem:
        """The problem of a network with the generalised Gauss-Newton matrix as its curvature.

        Args:
            training: The network and its data.
            prior: A, on the flat vector of uncertain weights.
            scale: s.
        """
        setting = (training.network, training.survey, training.likelihood, training.data)
        return cls(GGNProduct(*setting), GGNRoot(*setting, training.examples), prior, scale, training)

    def in_prior_units(self) -> Operator:
        """``A^-½ G A^-½``: the curvature in coordinates in which the prior is standard normal."""
        unit = self.prior.inverse_root()

        def product(block: Tensor) -> Tensor:
            return unit @ (self.curvature @ (unit @ block))

        return FunctionOperator(product, product, self.prior.shape, self.prior.values)

    def with_factor(self, factor: Float[Tensor, "d r"]) -> LowRank:
        """``s F Fᵀ + A``: the precision with a low-rank curvature.

        Args:
            factor: F, in the weights' own units.
        """
        return LowRank(self.scale**0.5 * factor, self.prior)

    @property
    def size(self) -> int:
        """Uncertain weights d."""
        return self.prior.shape[0]

    @cached_property
    def precision(self) -> Operator:
        """``Λ``."""

        def product(block: Tensor) -> Tensor:
            return self.scale * (self.curvature @ block) + self.prior @ block

        return FunctionOperator(product, product, self.prior.shape, self.prior.values)

    def perturbation(self, samples: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "d s"]:
        """Draws from N(0, Λ): ``√s R ε₁ + A^½ ε₂`` with standard normal ε, one a column.

        Args:
            samples: Draws.
            generator: Source of randomness.

        Cost:
            One product with R; memory ``(d + r)`` numbers a draw.
        """
        like = self.prior.values
        data = probes.gaussian((self.root.shape[1], samples), like=like, generator=generator)
        prior = probes.gaussian((self.size, samples), like=like, generator=generator)
        return self.scale**0.5 * (self.root @ data) + self.prior.root() @ prior
