"""The Gaussian linear model around a trained network, touched through products alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import TooLargeError
from lapwing.jacobian.model import Model
from lapwing.jacobian.products.gauss_newton import GGNProduct
from lapwing.jacobian.products.products import Part, shuffled
from lapwing.linalg import Diagonal, FunctionOperator, LowRank, Operator, Structured
from lapwing.linear.root import GGNRoot

NOISE = 2**34
"""Bytes the noise of the draws of a posterior may take, unless more is asked for (16 GiB)."""


@runtime_checkable
class Parts(Protocol):
    """The curvature piece by piece, made anew for each pass over the data."""

    def __call__(
        self, columns: int = 1, *, batch: int = 1, generator: torch.Generator | None = None
    ) -> Iterator[Iterator[Part]]:
        """The pieces, which add up to G, in mini-batches: the same ones in every pass, each read before the next.

        Args:
            columns: Columns of the blocks they will be multiplied with.
            batch: Examples of a mini-batch, at least, but for the last.
            generator: Shuffles the mini-batches, where they can be; without one they come as the data do.
        """
        ...


@final
@dataclass(frozen=True, eq=False)
class RowBlocks:
    """``G = sum_i R_iᵀ R_i`` for the rows R_i of each example of a linear model, a few examples at a time.

    Args:
        rows: ``B^½ J``: the rows of the examples one after the other.
        outputs: Rows of one example.
        examples: Examples to a piece.
    """

    rows: Float[Tensor, "r d"]
    outputs: int = 1
    examples: int = 64

    def __call__(
        self, columns: int = 1, *, batch: int = 1, generator: torch.Generator | None = None
    ) -> Iterator[Iterator[Part]]:
        """Blocks of rows in mini-batches; see ``Parts``."""
        blocks = self.rows.split(self.outputs * self.examples)
        parts = [Part(LowRank(block.mT), len(block) // self.outputs) for block in blocks]
        return shuffled(parts, batch, generator=generator)


@final
@dataclass(frozen=True, eq=False)
class Perturbation:
    """Noise that turns a solve into a draw from N(0, Λ⁻¹), in units that do not know the prior's precision.

    Drawn once, it serves a problem with any prior and noise: what moves with them is only how it is scaled
    (Antorán 2024, section 6.2.3).

    Args:
        data: ``R ε₁`` with standard normal ε₁, one draw a column.
        prior: Standard normal ε₂.
    """

    data: Float[Tensor, "d s"]
    prior: Float[Tensor, "d s"]

    @classmethod
    def joined(cls, parts: list[Perturbation]) -> Perturbation:
        """The draws of all parts."""
        return cls(torch.cat([part.data for part in parts], 1), torch.cat([part.prior for part in parts], 1))

    def fingerprint(self) -> str:
        """The first digits of the SHA-256 of ε₂, by which noise is told from other noise."""
        values = self.prior.detach().cpu().contiguous().view(torch.uint8)
        return hashlib.sha256(values.numpy().tobytes()).hexdigest()[:12]

    def head(self, samples: int) -> Perturbation:
        """The first draws, all where there are no more."""
        return Perturbation(self.data[:, :samples], self.prior[:, :samples])

    def right_hand_side(self, problem: Problem) -> Float[Tensor, "d s"]:
        """``√s R ε₁ + A^½ ε₂``: draws from N(0, Λ)."""
        return problem.scale**0.5 * self.data + problem.prior.root() @ self.prior

    def start(self, problem: Problem) -> Float[Tensor, "d s"]:
        """``A^-½ ε₂``: the draws before any data, where iterations that see little of the data should start."""
        return problem.prior.inverse_root() @ self.prior


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
        parts: G piece by piece, for solvers that read the data in mini-batches; ``None`` where only its sum is known.
        kept: Approximations of G, by recipe; they serve any prior and noise.

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
    training: Model | None = None
    parts: Parts | None = None
    kept: dict[object, Structured] = field(default_factory=dict, repr=False)
    prepared: dict[object, Structured] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls, training: Model, prior: Diagonal, scale: float = 1.0, *, curvature: GGNProduct | None = None
    ) -> Problem:
        """The problem of a network with the generalised Gauss-Newton matrix as its curvature.

        Args:
            training: The network, its likelihood, and its data.
            prior: A, on the flat vector of uncertain weights.
            scale: s.
            curvature: G, where it is at hand, or not that of the trained weights.
        """
        product = GGNProduct(training) if curvature is None else curvature
        return cls(product, GGNRoot(product), prior, scale, training, product.parts)

    @classmethod
    def of_rows(
        cls, rows: Float[Tensor, "r d"], prior: Diagonal, scale: float = 1.0, *, outputs: int = 1, examples: int = 64
    ) -> Problem:
        """The problem of a plain linear model: ``G = Rᵀ R``.

        Args:
            rows: ``R = B^½ J``: the rows of the examples one after the other.
            prior: A.
            scale: s.
            outputs: Rows of one example.
            examples: Examples to a piece, for mini-batches.
        """
        curvature = LowRank(rows.mT)
        return cls(curvature, curvature.root(), prior, scale, parts=RowBlocks(rows, outputs, examples))

    def with_prior(self, prior: Diagonal, scale: float) -> Problem:
        """The problem with another prior and noise: G, its approximations, and what its products keep is shared."""
        return replace(self, prior=prior, scale=scale)

    def check_unchanged(self) -> None:
        """Refuse to go on when the network was written to since.

        Raises:
            MismatchError: If a weight or buffer has changed.
        """
        if self.training is not None:
            self.training.network.check_unchanged(values=False)

    def in_prior_units(self) -> Operator:
        """``A^-½ G A^-½``: the curvature in coordinates in which the prior is standard normal."""
        unit = self.prior.inverse_root()

        def product(block: Tensor) -> Tensor:
            self.check_unchanged()
            return unit @ (self.curvature @ (unit @ block))

        return FunctionOperator(product, product, self.prior.shape, self.prior.values)

    def with_curvature(self, curvature: Structured) -> Structured:
        """``s G̃ + A``: the precision with a curvature in a structure.

        Args:
            curvature: G̃ ≈ G, in any precision.
        """
        return curvature.scaled(self.scale).plus_diagonal(Diagonal(self.prior.values.to(curvature.dtype)))

    @property
    def size(self) -> int:
        """Uncertain weights d."""
        return self.prior.shape[0]

    @property
    def precision(self) -> Operator:
        """``Λ``; made anew each time, since kept here it would keep this problem, and its preconditioners, alive."""

        def product(block: Tensor) -> Tensor:
            self.check_unchanged()
            return self.scale * (self.curvature @ block) + self.prior @ block

        return FunctionOperator(product, product, self.prior.shape, self.prior.values)

    def perturbation(
        self, samples: int, *, max_bytes: int | None = None, generator: torch.Generator | None = None
    ) -> Perturbation:
        """Noise drawn once, for right-hand sides of covariance Λ whatever the prior and the noise.

        Args:
            samples: Draws, one a column.
            max_bytes: Most memory it may take; ``None`` for any.
            generator: Source of randomness.

        Raises:
            TooLargeError: If it would take more; nothing is drawn.

        Cost:
            One product with R; memory ``(2 d + r)`` numbers a draw, of which ``2 d`` are kept.
        """
        self.check_unchanged()
        like, rows = self.prior.values, self.root.shape[1]
        needed = samples * (2 * self.size + rows) * like.itemsize
        if max_bytes is not None and needed > max_bytes:
            raise TooLargeError(
                f"noise of at most {max_bytes:,} bytes",
                f"{samples:,} draws of {self.size:,} weights and {rows:,} outputs, which need {needed:,} bytes",
                "fewer samples, or a larger max_bytes",
            )
        data = probes.gaussian((rows, samples), like=like, generator=generator)
        prior = probes.gaussian((self.size, samples), like=like, generator=generator)
        return Perturbation(self.root @ data, prior)
