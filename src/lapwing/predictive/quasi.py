"""Class probabilities by quasi-random draws: the same points at every call, smooth in the moments."""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.quasirandom import SobolEngine

from lapwing.ground.errors import UnsupportedError, check_count
from lapwing.predictive.moments import Moments, nonnegative
from lapwing.predictive.positions import MAX_BYTES, by_position
from lapwing.predictive.quadrature import expected_sigmoid

POINTS = 512
SEED = 0
_CELL = 2.0**-31  # half of the grid the engine draws from, so that no point is 0 or 1


def quasi_monte_carlo(
    moments: Moments, points: int = POINTS, *, max_bytes: int = MAX_BYTES
) -> Float[Tensor, "*batch c"]:
    """Class probabilities E softmax(f), averaged over scrambled Sobol normals.

        p = (1/S) Σ_s softmax(μ + R z_s),    R Rᵀ = Σ without the shift that all logits share

    The points z_s are the same at every call, and R is a Cholesky factor in a basis of contrasts: the answer is
    repeatable, differentiable and smooth in μ and Σ, and a variance that all logits share plays no part. Of two classes
    the integral has one dimension and is exact, see ``expected_sigmoid``. Scrambling: Owen (1998), "Scrambling Sobol
    and Niederreiter-Xing points".

    Args:
        moments: Gaussian logits.
        points: Number of points S, best a power of two.
        max_bytes: Memory for draws; as many positions are taken at a time.

    Returns:
        Probabilities ``[n, *event, c]``.

    Raises:
        NumericalError: If the covariance is not positive semi-definite.
        UnsupportedError: If there are more classes than Sobol points have dimensions.

    Cost: ``points`` softmaxes of every position and a Cholesky factorisation c × c, in pieces of ``max_bytes``.

    Example:
        >>> moments = Moments(torch.tensor([[2.0, 0.0, 0.0]]), 9 * torch.eye(3).expand(1, 3, 3))
        >>> quasi_monte_carlo(moments)
        tensor([[0.5173, 0.2416, 0.2411]])
    """
    check_count("points", points, usual=POINTS)
    mean, covariance = moments.mean, moments.covariance
    _ = moments.variance  # refuses what is no variance
    c = mean.shape[-1]
    if c == 1:
        return torch.ones_like(mean)
    if c == 2:
        gap = mean[..., 1] - mean[..., 0]
        contrast = contrasts(2).to(mean.device)[:, 0]
        spread = torch.einsum("...ij,i,j->...", covariance.double(), contrast, contrast)
        rare = expected_sigmoid(torch.where(gap > 0, -gap, gap), 2 * spread.clamp_min(0.0), max_bytes=max_bytes)
        pair = torch.stack([rare, 1 - rare], -1)
        return torch.where((gap > 0)[..., None], pair, pair.flip(-1))
    dtype = torch.promote_types(mean.dtype, torch.float32)
    normals = sobol_normals(points, c - 1).to(mean.device, dtype)

    def averaged(mean: Tensor, covariance: Tensor) -> Tensor:
        root = _root(covariance).to(dtype)
        moved = (root.flatten(0, 1) @ normals).view(*mean.shape, points)
        return torch.softmax(moved + mean.to(dtype)[..., None], -2).mean(-1)

    each = 3 * c * points * dtype.itemsize + 5 * c**2 * 8
    return by_position(averaged, mean, covariance, each, max_bytes)


@lru_cache(maxsize=4)
def sobol_normals(points: int, dimensions: int) -> Float[Tensor, "dimensions points"]:
    """Scrambled Sobol points through the inverse normal distribution function, float64 on the CPU; always the same.

    Raises:
        UnsupportedError: If there are too many dimensions.

    Cost: Two milliseconds for 512 points of nine dimensions; the last few sets are kept.
    """
    if dimensions > SobolEngine.MAXDIM:
        raise UnsupportedError(
            f"at most {SobolEngine.MAXDIM + 1:,} classes for link 'qmc'", f"{dimensions + 1:,}", "link='pairwise'"
        )
    with torch.inference_mode(False), torch.device("cpu"):
        uniform = SobolEngine(dimensions, scramble=True, seed=SEED).draw(points, dtype=torch.float64)
        return torch.special.ndtri(uniform + _CELL).mT.contiguous()


def contrasts(c: int) -> Float[Tensor, "c c-1"]:
    """Orthonormal directions in which logits differ: Helmert's, each class against the mean of those before it.

    Example:
        >>> contrasts(2)[:, 0]
        tensor([-0.7071,  0.7071], dtype=torch.float64)
    """
    order = torch.arange(1, c, dtype=torch.float64)
    rows = torch.arange(c, dtype=torch.float64)[:, None]
    helmert = torch.where(rows < order, -1.0, torch.where(rows == order, order, 0.0))
    return helmert * (order * (order + 1)).rsqrt()


def _root(covariance: Float[Tensor, "p c c"]) -> Float[Tensor, "p c c-1"]:
    """R with R Rᵀ = H Hᵀ Σ H Hᵀ for the contrasts H, in float64, its small eigenvalues raised to what rounds."""
    basis = contrasts(covariance.shape[-1]).to(covariance.device)
    reduced = basis.mT @ (0.5 * (covariance + covariance.mT)).double() @ basis
    sizes = covariance.diagonal(dim1=-2, dim2=-1).detach().double().amax(-1)
    floor = torch.finfo(covariance.dtype).eps * sizes + torch.finfo(torch.float64).tiny
    raised = reduced + torch.diag_embed(floor[:, None].expand(reduced.shape[:-1]))
    lower, failed = torch.linalg.cholesky_ex(raised)
    bad = failed > 0
    if bool(bad.any()):
        values, vectors = torch.linalg.eigh(reduced[bad])
        known = nonnegative(torch.cat([values, sizes[bad, None]], -1), "eigenvalue", covariance.dtype)[:, :-1]
        whole = (vectors * (known + floor[bad, None])[:, None, :]) @ vectors.mT
        lower = lower.index_put((bad,), torch.linalg.cholesky(whole))
    return basis @ lower
