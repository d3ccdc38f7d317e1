"""Parallel rays in two dimensions and slice by slice in three, and fans of rays from a source."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ct.geometry import LONGEST, Geometry, Rays, Seen, check_positive_length
from lapwing.ground.errors import ConfigError, check_count


class Parallel(Geometry):
    """Parallel rays: the bin at s of angle θ integrates along ``x cos θ + y sin θ = s``. See ``Geometry``."""

    @property
    def magnification(self) -> float:
        """None."""
        return 1.0

    def rays(self) -> Rays:
        """See ``Geometry``."""
        across, along = axes_of(self.theta)
        origin = self.positions[:, None] * across[:, None]
        return origin, along[:, None].expand_as(origin)

    def shadow(self, points: Float[Tensor, "n 2"]) -> Seen:
        """See ``Geometry``."""
        across, _ = axes_of(self.theta)
        seen = across @ points.mT
        return seen, torch.ones_like(seen)


@final
@dataclass(frozen=True, eq=False)
class Parallel2d(Parallel):
    """Parallel rays through one slice: the bin at s of angle θ integrates along ``x cos θ + y sin θ = s``.

    Its arguments are those of ``Geometry``.

    Example:
        >>> from lapwing.ct.geometry import equidistant
        >>> geometry = Parallel2d(pixels=(64, 48), angles=equidistant(30), pixel_size=0.5)
        >>> geometry.sinogram, geometry.image
        ((30, 80), (64, 48))
    """


@final
@dataclass(frozen=True, eq=False)
class Parallel3d(Parallel):
    """Parallel rays through slices above each other: ``Parallel2d`` slice by slice.

    A sinogram is a stack of projections, ``[angles, slices, bins]``, an image ``[slices, height, width]``. Its
    arguments are those of ``Geometry``, and

    Args:
        layers: How many slices.

    Example:
        >>> from lapwing.ct.geometry import equidistant
        >>> geometry = Parallel3d(pixels=(8, 8), angles=equidistant(5), detector=12, layers=6)
        >>> geometry.sinogram, geometry.image
        ((5, 6, 12), (6, 8, 8))
    """

    layers: int = 1

    def __post_init__(self) -> None:
        check_count("layers", self.layers)
        super().__post_init__()

    @property
    def slices(self) -> int:
        """See ``Geometry``."""
        return self.layers

    @property
    def image(self) -> tuple[int, ...]:
        """See ``Geometry``."""
        return (self.layers, *self.pixels)

    @property
    def sinogram(self) -> tuple[int, ...]:
        """See ``Geometry``."""
        return (len(self.theta), self.layers, self.bins)


@final
@dataclass(frozen=True, eq=False)
class FanBeam(Geometry):
    """Rays from a point source to a straight detector, both turning about the axis.

    At angle θ the source stands at ``source (sin θ, −cos θ)``, the middle of the detector beyond the axis. Its
    arguments are those of ``Geometry``, and

    Args:
        source: From the source to the axis.
        distance: From the axis to the detector; 0 for a detector that is thought through the axis.

    Example:
        >>> from lapwing.ct.geometry import equidistant
        >>> FanBeam(pixels=(64, 64), angles=equidistant(90, 6.28), source=200.0, distance=100.0).sinogram
        (90, 93)
    """

    source: float = field(kw_only=True)
    distance: float = 0.0

    def __post_init__(self) -> None:
        if not self.radius < self.source < math.inf:
            expected = f"a source outside the image, farther than {self.radius:g} from the axis"
            hint = "Parallel2d" if self.source == math.inf else "the unit that pixel_size has, 1.0 unless told"
            raise ConfigError(expected, f"source={self.source!r:.40}", hint)
        check_positive_length("source", self.source)
        if not 0 <= self.distance <= LONGEST:
            expected = "a finite distance from axis to detector of at least 0"
            raise ConfigError(expected, f"{self.distance!r:.40}", "distance=0")
        super().__post_init__()

    @property
    def magnification(self) -> float:
        """See ``Geometry``."""
        return (self.source + self.distance) / self.source

    def rays(self) -> Rays:
        """See ``Geometry``."""
        across, along = axes_of(self.theta)
        origin = (-self.source * along[:, None]).expand(-1, self.bins, -1)
        towards = self.distance * along[:, None] + self.positions[:, None] * across[:, None] - origin
        return origin, towards / towards.norm(dim=-1, keepdim=True)

    def shadow(self, points: Float[Tensor, "n 2"]) -> Seen:
        """See ``Geometry``."""
        across, along = axes_of(self.theta)
        magnified = (self.source + self.distance) / (self.source + along @ points.mT)
        return magnified * (across @ points.mT), magnified

    @property
    def _reach(self) -> float:
        return self.magnification * self.radius / math.sqrt(1 - (self.radius / self.source) ** 2)


def axes_of(theta: Float[Tensor, " angles"]) -> tuple[Float[Tensor, "angles 2"], Float[Tensor, "angles 2"]]:
    """Directions along the detector and along the middle ray."""
    across = torch.stack([theta.cos(), theta.sin()], -1)
    return across, torch.stack([-theta.sin(), theta.cos()], -1)
