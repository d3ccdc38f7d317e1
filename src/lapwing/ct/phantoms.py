"""Generated images to reconstruct: ellipses whose projections are known, rectangles, shells like a walnut's, digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ct.beams import Parallel2d
from lapwing.ct.geometry import Geometry
from lapwing.ground import probes
from lapwing.ground.errors import UnsupportedError, check_count, check_kind

Ellipse: TypeAlias = tuple[float, float, float, float, float, float]
"""Density, half-axes a and b, centre (x, y), and angle of a from the x-axis in radians."""

SHEPP_LOGAN: tuple[Ellipse, ...] = (
    (1.0, 0.69, 0.92, 0.0, 0.0, 0.0),
    (-0.8, 0.6624, 0.874, 0.0, -0.0184, 0.0),
    (-0.2, 0.11, 0.31, 0.22, 0.0, math.radians(-18)),
    (-0.2, 0.16, 0.41, -0.22, 0.0, math.radians(18)),
    (0.1, 0.21, 0.25, 0.0, 0.35, 0.0),
    (0.1, 0.046, 0.046, 0.0, 0.1, 0.0),
    (0.1, 0.046, 0.046, 0.0, -0.1, 0.0),
    (0.1, 0.046, 0.023, -0.08, -0.605, 0.0),
    (0.1, 0.023, 0.023, 0.0, -0.606, 0.0),
    (0.1, 0.023, 0.046, 0.06, -0.605, 0.0),
)
"""The head of Shepp and Logan with Toft's contrast, in a square from −1 to 1."""


@final
@dataclass(frozen=True)
class Ellipses:
    """Ellipses on top of each other, whose densities add up: images with line integrals in closed form.

    Args:
        parts: Of each its density, half-axes, centre and angle.
        scale: Length of 1 in the parts; lengths and densities are in your unit and its inverse.

    Example:
        >>> from lapwing.ct.beams import Parallel2d
        >>> disc = Ellipses(((0.5, 2.0, 2.0, 0.0, 0.0, 0.0),))
        >>> disc.sinogram(Parallel2d((4, 4), [0.0, 1.0], detector=1)).tolist()
        [[2.0], [2.0]]
    """

    parts: Sequence[Ellipse] = SHEPP_LOGAN
    scale: float = 1.0

    def density(self, points: Float[Tensor, "n 2"]) -> Float[Tensor, " n"]:
        """The sum of the densities of the ellipses around each point (x, y).

        Args:
            points: Where.
        """
        total = points.new_zeros(len(points))
        for density, *shape in self.parts:
            total += density * (_unit(points, shape, self.scale).square().sum(-1) <= 1)
        return total

    def image(self, geometry: Geometry, samples: int = 4) -> Float[Tensor, "height width"]:
        """The mean density of each pixel, float64.

        Args:
            geometry: Whose pixels; of one slice.
            samples: Points along each side of a pixel.
        """
        inner = (torch.arange(samples, dtype=torch.float64) + 0.5) / samples - 0.5
        shifts = geometry.pixel_size * torch.cartesian_prod(inner, inner)
        return torch.stack([self.density(geometry.points + shift) for shift in shifts]).mean(0).view(geometry.pixels)

    def sinogram(self, geometry: Geometry) -> Float[Tensor, "angles bins"]:
        """The integral of the density along each ray, exact: of an ellipse its density times the chord, float64.

        Args:
            geometry: Whose rays; of one slice.
        """
        origin, direction = geometry.rays()
        total = origin.new_zeros(origin.shape[:-1])
        for density, *shape in self.parts:
            o = _unit(origin, shape, self.scale)
            d = _unit(direction, shape, self.scale, centred=False)
            speed = d.square().sum(-1)  # the chord of the unit circle, stretched back
            distance = (o[..., 0] * d[..., 1] - o[..., 1] * d[..., 0]).square() / speed
            total += density * 2 * (1 - distance).clamp(min=0).sqrt() / speed.sqrt()
        return total


def shepp_logan(size: int) -> Float[Tensor, "size size"]:
    """The phantom of Shepp and Logan with Toft's contrast, values from 0 to 1, float64.

    Args:
        size: Pixels along a side.

    Example:
        >>> shepp_logan(8).shape
        torch.Size([8, 8])
    """
    square = _square(size)
    return Ellipses(scale=size / 2).image(square).clamp(min=0)  # rounding of densities that add up to 0


def rectangles(size: int, count: int = 3, *, generator: torch.Generator | None = None) -> Float[Tensor, "size size"]:
    """Rectangles on top of each other that nearly share a direction, values from 0 to 1, float64.

    Densities are uniform on (0.5, 1), half-sides on (0.1, 0.8) and centres on (−0.75, 0.75) of an image from −1 to 1;
    angles are normal about one uniform direction, with a standard deviation of 0.05 rad (Antorán 2024, §7.6).

    Args:
        size: Pixels along a side.
        count: Rectangles.
        generator: Source of randomness.
    """
    check_count("count", count)
    points = _square(size).points * (2 / size)
    mode = math.pi * float(_uniform(1, 0.0, 1.0, generator))
    total = points.new_zeros(len(points))
    for _ in range(count):
        density = float(_uniform(1, 0.5, 1.0, generator))
        (width, height) = _uniform(2, 0.1, 0.8, generator).tolist()
        centre = _uniform(2, -0.75, 0.75, generator).tolist()
        angle = mode + 0.05 * float(probes.gaussian([1], like=points, generator=generator))
        total += density * (_unit(points, (width, height, *centre, angle)).abs() <= 1).all(-1)
    return (total / total.max().clamp(min=1e-12)).view(size, size)


def walnut(shape: tuple[int, ...], *, generator: torch.Generator | None = None) -> Float[Tensor, "*shape"]:
    """A shell around a kernel with a gap and folds, like a walnut's: values from 0 to 1, float64.

    Surfaces are spheres bent by random plane waves, edges about a pixel wide.

    Args:
        shape: ``(height, width)``, or ``(slices, height, width)``.
        generator: Source of randomness.

    Example:
        >>> walnut((16, 16, 16), generator=torch.Generator().manual_seed(0)).shape
        torch.Size([16, 16, 16])
    """
    check_kind("shape", shape, (tuple, list), "(64, 64), or walnut((64, 64, 64)) for a volume")
    for side in shape:
        check_count("shape", side)
    axes = [(torch.arange(side, dtype=torch.float64) + 0.5) * (2 / side) - 1 for side in shape]
    points = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
    stretched = points / _uniform(len(shape), 0.8, 0.92, generator)
    radius = stretched.norm(dim=-1) + 0.03 * _waves(points, 5.0, generator)
    folds = radius + 0.12 * _waves(points, 9.0, generator)
    normal = probes.gaussian([len(shape)], like=points, generator=generator)
    gap = (points @ (normal / normal.norm())).abs() + 0.03 * _waves(points, 6.0, generator)
    width = 1 / max(shape)

    def below(values: Tensor, level: float) -> Tensor:
        return torch.sigmoid((level - values) / (0.5 * width))

    shell = below(radius, 0.98) - below(radius, 0.84)
    kernel = below(folds, 0.66) * (1 - below(gap, 0.08)) * (1 - below((folds - 0.36).abs(), 0.05))
    texture = 1 + 0.1 * _waves(points, 20.0, generator)
    return (shell + 0.6 * kernel * texture).clamp(0, 1)


def digits(size: int, *, count: int = 1, generator: torch.Generator | None = None) -> Float[Tensor, "count size size"]:
    """Handwritten digits of scikit-learn at random, enlarged from 8 × 8, values from 0 to 1, float64.

    Args:
        size: Pixels along a side.
        count: How many.
        generator: Source of randomness.

    Raises:
        UnsupportedError: Without scikit-learn.
    """
    check_count("size", size, usual=28)
    check_count("count", count)
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UnsupportedError(
            "scikit-learn, which has the digits", "no such package", "pip install scikit-learn"
        ) from error
    images = torch.as_tensor(load_digits(return_X_y=True)[0]).view(-1, 8, 8) / 16
    chosen = images[probes.permutation(len(images), generator=generator)[:count]]
    return torch.nn.functional.interpolate(chosen[:, None], (size, size), mode="bilinear")[:, 0]


def _unit(points: Tensor, shape: Sequence[float], scale: float = 1.0, *, centred: bool = True) -> Tensor:
    """Points, or directions, in coordinates where an ellipse is the unit circle about 0, a rectangle the square."""
    a, b, x, y, angle = shape
    rest = points - scale * points.new_tensor([x, y]) if centred else points
    along = points.new_tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    return rest @ along.mT / (scale * points.new_tensor([a, b]))


def _square(size: int) -> Geometry:
    """Pixels of size 1 alone: no ray is needed."""
    check_count("size", size)
    return Parallel2d((size, size), (0.0,))


def _uniform(count: int, low: float, high: float, generator: torch.Generator | None) -> Float[Tensor, " count"]:
    like = torch.empty(0, dtype=torch.float64)
    return low + (high - low) * probes.uniform([count], like=like, generator=generator)


def _waves(points: Float[Tensor, "*n d"], frequency: float, generator: torch.Generator | None) -> Float[Tensor, "*n"]:
    """A smooth random function of variance 1: plane waves of normal frequencies."""
    frequencies = frequency * probes.gaussian([points.shape[-1], 12], like=points, generator=generator)
    phases = _uniform(12, 0.0, 2 * math.pi, generator)
    return (points @ frequencies + phases).cos().sum(-1) * math.sqrt(2 / 12)
