"""Covariances of logits without the shift that all of them share, which a softmax does not see."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.precision import wide
from lapwing.ground.tracing import traced
from lapwing.linalg.contrasts import from_contrasts, into_contrasts
from lapwing.moments.rounding import clamp_rounding

RATE = 2e10
"""Multiplications a second of one core in float64."""

FACTORISED = 6
"""Multiplications that a root of c × c takes at most, over c³."""


def contrast_root(covariance: Float[Tensor, "p c c"]) -> Float[Tensor, "p c c-1"]:
    """R with R Rᵀ = H Hᵀ Σ H Hᵀ for the contrasts H, in float64, its small eigenvalues raised to what rounds."""
    symmetric = wide(0.5 * (covariance + covariance.mT))
    reduced = into_contrasts(into_contrasts(symmetric).mT)
    sizes = wide(covariance.diagonal(dim1=-2, dim2=-1).detach()).amax(-1)
    floor = torch.finfo(covariance.dtype).eps * sizes + torch.finfo(torch.float64).tiny
    raised = reduced + torch.diag_embed(floor[:, None].expand(reduced.shape[:-1]))
    lower, failed = torch.linalg.cholesky_ex(raised)
    bad = failed > 0
    if not traced() and bool(bad.any()):
        values, vectors = torch.linalg.eigh(reduced[bad])
        known = clamp_rounding(torch.cat([values, sizes[bad, None]], -1), "eigenvalue", covariance.dtype)[:, :-1]
        root = vectors * (known + floor[bad, None]).sqrt()[:, None, :]
        upper = torch.linalg.qr(root.mT).R  # its transpose is the Cholesky factor, but for the signs of its columns
        signs = upper.diagonal(dim1=-2, dim2=-1).sign()
        lower = lower.index_put((bad,), upper.mT * signs[:, None, :])
    return -from_contrasts(lower)
