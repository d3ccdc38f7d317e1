"""The exact log-determinant of a mini-batch, by the smaller of its two Gram matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import TooLargeError, check_count
from lapwing.linear.evidence import log_det_one_plus
from lapwing.methods.marginal.batch import LogDeterminant, MiniBatch


@final
@dataclass(frozen=True)
class Gram(LogDeterminant):
    """``log det(I + N/B Φ Φᵀ)`` with ``Φ = s^½ Sᵀ J A^-½``: exact for the batch, by a Cholesky factorisation.

    By Sylvester's identity it equals ``log det Λ̂ / det A``; ``ΦᵀΦ`` takes its place where there are fewer weights than
    rows. The log-determinant is concave, so that of ``Λ̂`` is below that of Λ on average, the more the smaller the
    batch: a batch sees at most B c of the directions the data determine, and its gradient in a prior precision pushes
    that down. All the data in one batch make it exact.

    Args:
        max_bytes: Largest rows and Gram matrix together it will make for a batch.

    Raises:
        TooLargeError: If they would be larger; nothing is computed.

    Cost:
        Explicit rows, ``B c d`` numbers and their graph; ``(B c)² d`` or ``B c d²`` operations.

    Example:
        >>> import lapwing as lw
        >>> from lapwing.methods.marginal import MarginalLikelihood
        >>> model, x, y = torch.nn.Linear(2, 1), torch.randn(8, 2), torch.randn(8, 1)
        >>> marginal = MarginalLikelihood(model, lw.Gaussian(), lw.Isotropic(2.0), data_size=8, warm_up=0, settle=0)
        >>> posterior = lw.Laplace(lw.Gaussian(), prior=lw.Isotropic(2.0)).fit(model, (x, y))
        >>> abs(marginal.loss(x, y).item() + posterior.log_marginal()) < 1e-4
        True
    """

    max_bytes: int = 2**32

    def __post_init__(self) -> None:
        check_count("max_bytes", self.max_bytes)

    def ratio(self, batch: MiniBatch, generator: torch.Generator | None = None) -> Float[Tensor, ""]:
        """Exact for the batch; see ``LogDeterminant.ratio``."""
        self._check(math.prod(batch.live.cotangents.shape[:2]), batch.live.network.size)
        rows = batch.share**0.5 * batch.rows().flatten(0, 1)
        return log_det_one_plus(rows @ rows.mT if len(rows) <= rows.shape[1] else rows.mT @ rows)

    def _check(self, rows: int, size: int) -> None:
        """Refuses what would be larger than ``max_bytes``."""
        needed = torch.float64.itemsize * (rows * size + min(rows, size) ** 2)
        if needed > self.max_bytes:
            raise TooLargeError(
                f"Jacobian rows of a batch and their Gram matrix of at most {self.max_bytes:,} bytes",
                f"{rows} rows of {size} weights, {needed:,} bytes",
                "smaller batches; log_det=StochasticLanczos() or Bound(samples=2), which make fewer rows; log_det=None "
                "with updates=ByEvidence(); requires_grad_(False) for all but the last layer; or Gram(max_bytes=...)",
            )


EXACT = Gram()
"""The default."""
