"""Noise of sinograms: Gaussian, or that of counted photons; and how large it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from lapwing.ct.geometry import Geometry, check_rays, check_real, ray_in_words
from lapwing.ct.projector import Projector
from lapwing.ground import probes
from lapwing.ground.data.inputs import Array, as_tensor
from lapwing.ground.errors import ConfigError, DataError, ShapeError, check_positive
from lapwing.ground.precision import wide
from lapwing.ground.progress import Bar, working
from lapwing.ground.results import Estimate
from lapwing.linalg.operators.base import unit_vectors
from lapwing.linalg.operators.eigenbasis import decompose

RAYS = 2048
"""Rays of a slice that the noise is read from, at most, or one angle."""

REFINED = 3
"""Pixels along one of the geometry's, for the image that the noise is told from."""

SIDE = 384
"""Pixels along a side of that image, where the geometry itself has no more."""

POWERS = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
"""Of the frequency, by which the power of an image may fall; thin structures have small ones."""

BLOCK = 64
"""Rays whose images are made together."""

LEAST = 1e-10
MOST = 1e4
"""Noise variance over the largest that the image has in any direction, as it is looked for."""


def add_gaussian(
    sinogram: Float[Tensor, "*shape"] | Array | list[Any],
    fraction: float = 0.05,
    *,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, "*shape"], float]:
    """A sinogram with normal noise whose standard deviation is a fraction of the mean of ``|T x|``.

    Args:
        sinogram: T x without noise.
        fraction: Of the mean absolute value.
        generator: Source of randomness.

    Returns:
        The noisy sinogram, and the standard deviation; a likelihood of it is ``Gaussian(std**-2)``.

    Raises:
        DataError: If a ray is not finite.
        ShapeError: If there is no ray.
        UnsupportedError: If the sinogram is not of real numbers.

    Example:
        >>> y, std = add_gaussian(torch.full((3, 4), 2.0), 0.1)
        >>> round(std, 6)
        0.2
    """
    check_positive("fraction", fraction, "0.05")
    sinogram = as_tensor(sinogram)
    check_real(sinogram, "sinogram")
    check_rays(sinogram)
    std = fraction * float(sinogram.abs().mean())
    return sinogram + std * probes.gaussian(sinogram.shape, like=sinogram, generator=generator), std


def count_photons(
    sinogram: Float[Tensor, "*shape"] | Array | list[Any], photons: float, *, generator: torch.Generator | None = None
) -> Float[Tensor, "*shape"]:
    """Photons that a detector counts behind an object: Poisson, ``N ~ Poisson(I₀ exp(−T x))``, by Beer and Lambert.

    Args:
        sinogram: T x, without unit.
        photons: I₀, those that a bin would count without the object.
        generator: Source of randomness.

    Returns:
        Counts, in float32 at least: half precision has no whole numbers beyond 256 or 2048.

    Raises:
        ConfigError: If photons are no positive finite number.
        DataError: If a ray is not finite, or so negative that no number holds its count.
    """
    check_positive("photons", photons, "1e4")
    if not math.isfinite(photons):
        raise ConfigError("finite photons", f"{photons!r:.40}", "photons=1e4")
    sinogram = as_tensor(sinogram)
    check_rays(sinogram)
    means = photons * torch.exp(-sinogram.to(torch.promote_types(sinogram.dtype, torch.float32)))
    if not bool(means.isfinite().all()):
        came = f"one of {float(sinogram.min()):g}, behind which {sinogram.dtype} cannot count"
        raise DataError("a sinogram of line integrals, 0 or more", came, "its unit, and fewer photons")
    return probes.poisson(means, generator=generator)


def log_transform(
    counts: Shaped[Tensor, "*shape"] | Array | list[Any], photons: float | Float[Tensor, "*flat"] | Array | list[Any]
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """The sinogram that counted photons are a measurement of, and its variance.

    ``y = log I₀ − log(N + ½)`` has the mean T x, and ``1 / (N + ½)`` its variance, up to terms of order ``1/N²``: the
    half takes the bias away, and keeps rays that counted nothing finite.

    Args:
        counts: N, ``[angles, bins]``, corrected for the dark current.
        photons: I₀, one number, or that of each bin (the flat field).

    Returns:
        The sinogram and the variance of each ray.

    Raises:
        DataError: If counts are negative or not finite, with the place of the first, or photons are not positive.
        ShapeError: If photons are neither one number nor of each bin.

    Example:
        >>> y, variance = log_transform(torch.tensor([[15.5]]), 16.0)
        >>> y.tolist(), variance.tolist()
        ([[0.0]], [[0.0625]])
    """
    counts = as_tensor(counts)
    counts = counts if counts.is_floating_point() else counts.to(torch.get_default_dtype())
    check_rays(counts)
    negative = (counts < 0).nonzero()
    if len(negative):
        got = f"{len(negative)} negative ones of {counts.numel()}, the first at {ray_in_words(negative[0])}"
        raise DataError("counts of photons", got, "counts.clamp(min=0) if a dark image was taken off, else raw counts")
    open_beam = torch.as_tensor(photons).to(counts)
    sides = zip(reversed(open_beam.shape), reversed(counts.shape), strict=False)
    if open_beam.ndim > counts.ndim or any(side not in (1, count) for side, count in sides):
        expected = f"photons as one number, or of each bin of counts {list(counts.shape)}"
        raise ShapeError(expected, f"{list(open_beam.shape)}", "the flat field of these bins")
    if not bool((open_beam > 0).all()):
        raise DataError("positive photons", f"{float(open_beam.min()):g}", "the counts of a bin without an object")
    more = counts + 0.5
    return open_beam.log() - more.log(), 1 / more


def noise_level(
    sinogram: Float[Tensor, "*shape"] | Array | list[Any], geometry: Geometry, *, progress: bool | None = None
) -> Estimate:
    """The standard deviation of the white noise of a sinogram, from itself, with its standard error.

    Rays of one image foretell each other, noise does not: σ is what is left. The image is taken for a Gaussian one
    whose power falls with the frequency, ``R_k ∝ |k|⁻ᵖ``, and p, its variance v and σ² are those that make the sinogram
    likeliest, where every ray is held out from those that foretell it (MacKay 1992):

        y ~ N(0, v K + σ² I),   K = T R Tᵀ,        so that   σ² = |y - T x̂|² / (N - γ),   γ = tr v K (v K + σ² I)⁻¹

    with x̂ the mean of the image given y. Images with edges have p about 3, thin structures less: p is one of
    ``POWERS``. T has pixels a third as wide as the geometry's, so that what wide pixels do not resolve counts as the
    object's, not as noise. Of a scan with more than 2048 rays a slice, some angles are read, at equal distances.

    Noise of counted photons is known without: ``log_transform`` has the variance of each ray.

    Args:
        sinogram: In the geometry's shape, or flat.
        geometry: Where its rays run. What of the object lies outside its image counts as noise.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

    Returns:
        σ in the units of the sinogram; its standard error by Fisher's information, of an image as said and noise that
        is alike in all rays; and as ``samples`` the number of rays read.

    Raises:
        DataError: If a ray is not finite.
        ShapeError: If the sinogram is not of the geometry.
        UnsupportedError: If it is not of real numbers.

    Cost:
        For n rays read, n Fourier transforms of an image of at most 384 × 384 pixels, or as many as the geometry has,
        and for each of six powers as many back, and the eigenvalues of three to six n × n matrices in float64: a second
        for 32 × 32 pixels and 20 angles, a quarter of a minute for larger scans. Memory: ``64 n²`` bytes, 270 MB at
        most, and about 100 MB for T.

    Example:
        >>> from lapwing.ct.beams import Parallel2d
        >>> from lapwing.ct.geometry import equidistant
        >>> from lapwing.ct.phantoms import Ellipses
        >>> geometry = Parallel2d((16, 16), equidistant(12))
        >>> clean = Ellipses(scale=8.0).sinogram(geometry)
        >>> noisy, std = add_gaussian(clean, 0.05, generator=torch.Generator().manual_seed(0))
        >>> found = noise_level(noisy, geometry)
        >>> abs(found.value - std) < 3 * found.stderr
        True
    """
    sinogram = as_tensor(sinogram)
    check_real(sinogram, "sinogram")
    y = wide(geometry.check(sinogram).detach()).view(len(geometry.theta), geometry.slices, geometry.bins)
    angles = _at_equal_distances(len(geometry.theta), RAYS // geometry.bins)
    y = y[angles]
    largest = float(y.abs().max())
    if largest == 0:
        return Estimate(0.0, 0.0, y.numel())
    columns = y.movedim(1, 2).flatten(0, 1) / largest  # a slice each
    with working("noise", progress):
        kernels = _image_kernels(_refined(geometry.select(angles)), y)
        found = _likeliest_power(kernels, columns)
    return Estimate(largest * found.std, largest * found.stderr, y.numel())


@final
@dataclass(frozen=True)
class Likeliest:
    """What makes a sinogram likeliest.

    Args:
        std: σ.
        stderr: Its standard error.
        loss: Minus the log likelihood of a slice, nats, up to a constant.
    """

    std: float
    stderr: float
    loss: float


def likeliest(values: Float[Tensor, " n"], squares: Float[Tensor, " n"], slices: int) -> Likeliest:
    """σ where ``Π N(y; 0, v (K + ρ I))`` over slices is largest, with ρ = σ² / v, and its standard error.

    The best v for each ρ is known, ``yᵀ (K + ρ I)⁻¹ y / n``. Fisher's information in (log v, log σ²) is half the sums
    of products of the parts that image and noise have in each direction.

    Args:
        values: Eigenvalues of K.
        squares: Of the sinogram in their directions, the mean over slices.
        slices: How many.
    """
    from scipy.optimize import minimize_scalar  # half a second to import

    def loss(log_ratio: float) -> float:
        shifted = values + math.exp(log_ratio)
        return 0.5 * float(len(values) * (squares / shifted).mean().log() + shifted.log().sum())

    scale = float(values.max()) or 1.0
    bounds = (math.log(LEAST * scale), math.log(MOST * scale))
    found: Any = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    ratio = math.exp(found.x)
    shifted = values + ratio
    std = math.sqrt(ratio * float((squares / shifted).mean()))
    parts = torch.stack([values / shifted, ratio / shifted])
    information = 0.5 * slices * parts @ parts.mT
    of_log_variance = math.sqrt(float(torch.linalg.pinv(information, hermitian=True)[1, 1]))
    return Likeliest(std, 0.5 * std * of_log_variance, float(found.fun))


def _likeliest_power(kernels: Sequence[Float[Tensor, "n n"]], columns: Float[Tensor, "n s"]) -> Likeliest:
    """The likeliest noise at the likeliest power: from that in the middle on, one way and then the other.

    Args:
        kernels: K for each of ``POWERS``.
        columns: The sinogram, a column a slice.
    """

    def at(place: int) -> Likeliest:
        kernel = decompose(kernels[place])
        squares = (kernel.vectors.mT @ columns).square().mean(1)
        return likeliest(kernel.values, squares, columns.shape[1])

    middle = len(kernels) // 2
    best = at(middle)
    with Bar("likeliest power of the image", most=len(kernels), unit="powers") as bar:
        for way in (range(middle - 1, -1, -1), range(middle + 1, len(kernels))):
            for place in way:
                bar.update()
                found = at(place)
                if found.loss >= best.loss:
                    break
                best = found
    return best


def _refined(geometry: Geometry) -> Geometry:
    """The same rays through pixels a third as wide, or wider ones where ``SIDE`` would be exceeded."""
    parts = max(1, min(REFINED, SIDE // max(geometry.pixels)))
    height, width = geometry.pixels
    return replace(
        geometry,
        pixels=(parts * height, parts * width),
        pixel_size=geometry.pixel_size / parts,
        detector=geometry.bins,
        bin_size=geometry.spacing,
    )


def _image_kernels(geometry: Geometry, like: Tensor) -> list[Float[Tensor, "n n"]]:
    """``T R Tᵀ`` of one slice for each power; R is periodic, and so diagonal over the frequencies of the image."""
    projector = Projector(geometry, like.dtype, like.device)
    height, width = geometry.pixels
    vertical = wide(torch.fft.fftfreq(height)).to(like)[:, None]
    horizontal = wide(torch.fft.rfftfreq(width)).to(like)
    periods = max(height, width) * (vertical.square() + horizontal.square()).sqrt()
    powers = [periods.clamp_min(1.0) ** -power for power in POWERS]  # the mean as the slowest wave
    rays = len(geometry.theta) * geometry.bins
    kernels = [like.new_empty(rays, rays) for _ in POWERS]
    with Bar("noise", rays, unit="rays") as bar:
        for index in torch.arange(rays, device=like.device).split(BLOCK):
            images = (projector.transposed @ unit_vectors(index, rays, like)).mT.unflatten(1, geometry.pixels)
            waves = torch.fft.rfft2(images)
            for kernel, power in zip(kernels, powers, strict=True):
                drawn = torch.fft.irfft2(power * waves, geometry.pixels)
                kernel[:, index] = projector.matrix @ drawn.flatten(1).mT.contiguous()
            bar.update(len(index))
    return kernels


def _at_equal_distances(count: int, most: int) -> Int[Tensor, " n"]:
    """All of some numbers, or as many as there may be, at least one."""
    kept = max(1, min(count, most))
    return torch.arange(kept) * count // kept
