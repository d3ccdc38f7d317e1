"""The exact log-determinant of a mini-batch, by the smaller of its two Gram matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.evidence import log_det_one_plus
from lapwing.marginal.batch import LogDeterminant, MiniBatch


@final
@dataclass(frozen=True)
class Gram(LogDeterminant):
    """``log det(I + N/B Φ Φᵀ)`` with ``Φ = s^½ Sᵀ J A^-½``: exact for the batch, by a Cholesky factorisation.

    By Sylvester's identity it equals ``log det Λ̂ / det A``; ``ΦᵀΦ`` takes its place where there are fewer weights than
    rows. The log-determinant is concave, so that of ``Λ̂`` is below that of Λ on average, the more the smaller the
    batch: a batch sees at most B c of the directions the data determine, and its gradient in a prior precision pushes
    that down. All the data in one batch make it exact.

    Cost:
        Explicit rows, ``B c d`` numbers and their graph; ``(B c)² d`` or ``B c d²`` operations.

    Example:
        >>> import lapwing as lw
        >>> from lapwing.marginal import MarginalLikelihood
        >>> model, x, y = torch.nn.Linear(2, 1), torch.randn(8, 2), torch.randn(8, 1)
        >>> marginal = MarginalLikelihood(model, lw.Gaussian(), lw.Isotropic(2.0), data_size=8, warm_up=0, settle=0)
        >>> posterior = lw.Laplace(lw.Gaussian(), prior=lw.Isotropic(2.0)).fit(model, (x, y))
        >>> abs(marginal.loss(x, y).item() + posterior.log_marginal()) < 1e-4
        True
    """

    def ratio(self, batch: MiniBatch, generator: torch.Generator | None = None) -> Float[Tensor, ""]:
        """Exact for the batch; see ``LogDeterminant.ratio``."""
        rows = batch.share**0.5 * batch.rows().flatten(0, 1)
        return log_det_one_plus(rows @ rows.mT if len(rows) <= rows.shape[1] else rows.mT @ rows)


EXACT = Gram()
"""The default."""
