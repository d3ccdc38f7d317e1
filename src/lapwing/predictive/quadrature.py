"""Means of a softmax and of a sigmoid over Gaussian logits: quasi-random points, and in one dimension a quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.quasirandom import SobolEngine

from lapwing.ground.device import CACHED
from lapwing.ground.errors import TooLargeError, UnsupportedError
from lapwing.ground.precision import wide, wide_like
from lapwing.ground.tracing import traced
from lapwing.moments.outputs import Moments
from lapwing.moments.wide import WideMoments

MAX_BYTES = 2**28
"""Memory that averaging over outputs may take beside its result (256 MiB)."""

LONGEST = 5.0
"""Seconds that one position may take at most."""

POINTS = 512  # a power of two: Sobol points are then balanced
SEED = 0
_CELL = 2.0**-31  # half of the grid the engine draws from, so that no point is 0 or 1
_NARROW = 2.0  # standard deviation up to which the sum is over the Gaussian
_NODES = 128


def quasi_monte_carlo(
    moments: Moments | WideMoments, *, points: int = POINTS, max_bytes: int = MAX_BYTES
) -> Float[Tensor, "*batch c"]:
    """Class probabilities E softmax(f), averaged over scrambled Sobol normals.

        p = (1/S) Σ_s softmax(μ + R z_s),    R Rᵀ = Σ without the shift that all logits share

    The points z_s are the same at every call, and R is a Cholesky factor in a basis of contrasts: the answer is
    repeatable, differentiable and smooth in μ and Σ, and a variance that all logits share plays no part. Of two classes
    the integral has one dimension and is exact, see ``expected_sigmoid``. Scrambling: Owen (1998), "Scrambling Sobol
    and Niederreiter-Xing points".

    Args:
        moments: Gaussian logits.
        points: How many points, a power of two.
        max_bytes: Memory for draws; as many positions are taken at a time.

    Returns:
        Probabilities ``[n, *event, c]``.

    Raises:
        NumericalError: If the covariance is not positive semi-definite.
        TooLargeError: If the covariance is a matrix of so many classes that its root would take over ``LONGEST``.
        UnsupportedError: If there are more classes than Sobol points have dimensions.

    Cost: ``points`` softmaxes of every position, in pieces of ``max_bytes``; where the covariance is a matrix, its
    Cholesky factorisation, or its eigendecomposition where it is singular: ``Moments.contrast_seconds`` at most.

    Example:
        >>> moments = Moments(torch.tensor([[2.0, 0.0, 0.0]]), 9 * torch.eye(3).expand(1, 3, 3))
        >>> quasi_monte_carlo(moments)
        tensor([[0.5173, 0.2416, 0.2411]])
    """
    mean = moments.mean
    _ = moments.variance  # refuses what is no variance
    c = mean.shape[-1]
    if c == 1:
        return torch.ones_like(mean)
    if c == 2:
        gap = mean[..., 1] - mean[..., 0]
        covariance = wide(moments.covariance)
        sums = covariance[..., 0, 0] + covariance[..., 1, 1]
        variance = (sums - covariance[..., 0, 1] - covariance[..., 1, 0]).clamp_min(0.0)
        rare = expected_sigmoid(torch.where(gap > 0, -gap, gap), variance, max_bytes=max_bytes)
        pair = torch.stack([rare, 1 - rare], -1)
        return torch.where((gap > 0)[..., None], pair, pair.flip(-1))
    dtype = torch.promote_types(mean.dtype, torch.float32)
    check_time("qmc", c, moments.contrast_seconds)
    normals = sobol_normals(points, moments.contrast_columns).to(mean.device, dtype)

    def averaged(some: Moments | WideMoments) -> Tensor:
        moved = some.coloured_contrasts(normals).to(dtype)
        return torch.softmax(moved + some.mean.to(dtype)[..., None], -2).mean(-1)

    return over_positions(averaged, moments, 3 * c * points * dtype.itemsize + moments.contrast_bytes, max_bytes)


@lru_cache(maxsize=4)
def sobol_normals(points: int, dimensions: int) -> Float[Tensor, "dimensions points"]:
    """Scrambled Sobol points through the inverse normal distribution function, float64 on the CPU; always the same.

    Raises:
        UnsupportedError: If there are too many dimensions.

    Cost: Two milliseconds for 512 points of nine dimensions; the last few sets are kept.
    """
    if dimensions > SobolEngine.MAXDIM:
        raise UnsupportedError(
            f"at most {SobolEngine.MAXDIM:,} independent outputs for link 'qmc'", f"{dimensions:,}", "link='probit'"
        )
    with torch.inference_mode(False), torch.device("cpu"):
        uniform = SobolEngine(dimensions, scramble=True, seed=SEED).draw(points, dtype=torch.float64)
        return torch.special.ndtri(uniform + _CELL).mT.contiguous()


def expected_sigmoid(
    mean: Float[Tensor, "*n"], variance: Float[Tensor, "*n"], *, max_bytes: int = MAX_BYTES
) -> Float[Tensor, "*n"]:
    """E σ(m + s Z) for a standard normal Z, to about ten digits for every mean and variance, however small it is.

    The trapezoidal rule, which converges exponentially (Trefethen and Weideman 2014, "The exponentially convergent
    trapezoidal rule"), over the Gaussian where s ≤ 2, else over the logistic variable L whose distribution function σ
    is: ``E σ(m + s Z) = E Φ((m - L) / s)``. Far below 0 the exact ``E σ(m + s Z) = e^(m + s²/2) E σ(-m - s² - s Z)``
    keeps the relative error small.

    Args:
        mean: m.
        variance: s², at least 0.
        max_bytes: Memory for nodes; as many elements are taken at a time.

    Returns:
        Probabilities, in the dtype of the mean; computed in float64.

    Cost: about 150 evaluations of σ and Φ an element.

    Example:
        >>> expected_sigmoid(torch.tensor([2.0, 2.0, 2.0]), torch.tensor([0.0, 4.0, 1e8]))
        tensor([0.8808, 0.7752, 0.5001])
    """
    if traced():
        return _expected(wide(mean).reshape(-1), wide(variance).reshape(-1)).view(mean.shape).to(mean)
    step = max(1, max_bytes // (8 * _NODES * 3))
    pieces = zip(mean.reshape(-1).split(step), variance.reshape(-1).split(step), strict=True)
    found = torch.cat([_expected(wide(m), wide(v)) for m, v in pieces])
    return found.view(mean.shape).to(mean)


def _expected(mean: Float[Tensor, " n"], variance: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    std = variance.clamp_min(torch.finfo(torch.float64).tiny).sqrt()
    low = torch.where(mean > 0, -mean, mean)  # unlike abs, with a gradient at 0
    rare = torch.where(std <= _NARROW, _over_normal(low, std.clamp_max(_NARROW)), _over_logistic(low, std))
    return torch.where(mean > 0, 1 - rare, rare)


def _over_normal(mean: Float[Tensor, " n"], std: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    nodes = torch.arange(-24, 25, **wide_like(mean)) * 0.4
    weights = torch.softmax(-0.5 * nodes.square(), 0)
    return torch.sigmoid(mean[:, None] + std[:, None] * nodes) @ weights


def _over_logistic(mean: Float[Tensor, " n"], std: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    std = std.clamp_min(_NARROW)
    square = std.square()
    far = mean < -0.5 * square
    scale = torch.where(far, mean + 0.5 * square, 0.0).exp()
    start = torch.where(far, -mean - square, mean)
    nodes = torch.arange(-80, 48, **wide_like(mean)) * 0.7
    weights = torch.sigmoid(nodes) * torch.sigmoid(-nodes)
    below = 0.5 * torch.special.erfc((nodes - start[:, None]) / (math.sqrt(2) * std[:, None]))
    return scale * (below @ (weights / weights.sum()))


def over_positions(
    function: Callable[[Moments | WideMoments], Tensor],
    moments: Moments | WideMoments,
    each: int,
    max_bytes: int = MAX_BYTES,
) -> Float[Tensor, "*batch c"]:
    """Values ``[n, *event, c]`` of a function of the moments of some positions, which gives ``[p, c]``.

    Args:
        function: What to compute.
        moments: Moments of all positions.
        each: Bytes that one position takes inside the function.
        max_bytes: Memory for the positions of one call.
    """
    mean = moments.mean
    if traced():
        return function(moments.at_positions(slice(None))).view(mean.shape).to(mean)
    room = min(max_bytes, CACHED) if mean.device.type == "cpu" else max_bytes
    step = max(1, room // each)
    pieces = [slice(start, start + step) for start in range(0, mean[..., 0].numel(), step)]
    return torch.cat([function(moments.at_positions(piece)) for piece in pieces]).view(mean.shape).to(mean)


def check_time(link: str, classes: int, seconds: float) -> None:
    """Refuses a link over so many classes that one position would take more than ``LONGEST``.

    Raises:
        TooLargeError: Naming both.
    """
    if seconds > LONGEST:
        expected = f"link {link!r} to take at most {LONGEST:g} s a position"
        got = f"{classes:,} classes, which take about {seconds:.0f} s"
        raise TooLargeError(expected, got, "link='probit', which takes their variances alone")
