"""Noise that turns a solve into a draw."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data.inputs import bits
from lapwing.ground.errors import check_bytes
from lapwing.linear.problem import Problem

NOISE = 2**34
"""Bytes the noise of the draws of a posterior may take, unless more is asked for (16 GiB)."""


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
    def drawn(
        cls,
        problem: Problem,
        samples: int,
        *,
        max_bytes: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Perturbation:
        """Noise drawn once, for right-hand sides of covariance Λ whatever the prior and the noise.

        Args:
            problem: The problem.
            samples: Draws, one a column.
            max_bytes: Most memory it may take; ``None`` for any.
            generator: Source of randomness.

        Raises:
            TooLargeError: If it would take more; nothing is drawn.

        Cost:
            One product with R; memory ``(2 d + r)`` numbers a draw, of which ``2 d`` are kept.
        """
        like = problem.prior.values
        rows = problem.root.shape[1]
        if max_bytes is not None:
            needed = samples * (2 * problem.size + rows) * like.itemsize
            got = f"{samples:,} draws of {problem.size:,} weights and {rows:,} outputs, which need"
            check_bytes("noise", needed, max_bytes, got, "fewer samples, or a larger max_bytes")
        data = probes.gaussian((rows, samples), like=like, generator=generator)
        prior = probes.gaussian((problem.size, samples), like=like, generator=generator)
        return cls(problem.root @ data, prior)

    @classmethod
    def joined(cls, parts: list[Perturbation]) -> Perturbation:
        """The draws of all parts."""
        return cls(torch.cat([part.data for part in parts], 1), torch.cat([part.prior for part in parts], 1))

    def fingerprint(self) -> str:
        """The first digits of the SHA-256 of ε₂, by which noise is told from other noise."""
        return hashlib.sha256(bits(self.prior)).hexdigest()[:12]

    def head(self, samples: int) -> Perturbation:
        """The first draws, all where there are no more."""
        return Perturbation(self.data[:, :samples], self.prior[:, :samples])

    def right_hand_side(self, problem: Problem) -> Float[Tensor, "d s"]:
        """``√s R ε₁ + A^½ ε₂``: draws from N(0, Λ)."""
        return problem.scale**0.5 * self.data + problem.prior.root() @ self.prior

    def start(self, problem: Problem) -> Float[Tensor, "d s"]:
        """``A^-½ ε₂``: the draws before any data, where iterations that see little of the data should start."""
        return problem.prior.inverse_root() @ self.prior
