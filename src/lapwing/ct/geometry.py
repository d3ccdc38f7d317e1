"""Where the rays of a tomograph run: angles, detector and pixels, with their units."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.data.checks import check_finite
from lapwing.ground.data.inputs import Array, as_tensor
from lapwing.ground.errors import (
    ConfigError,
    DataError,
    DataWarning,
    ShapeError,
    UnsupportedError,
    check_bytes,
    check_count,
    check_positive,
    warn,
)

LONGEST = 1e18
"""Longest length there may be, the shortest is its inverse: float32 holds their squares."""

MEMORY = 2**34
"""Bytes that the places of rays, or of pixels, may take (16 GiB)."""

WHOLE = 5
"""So many different angles that are all whole numbers are taken for degrees."""

Rays: TypeAlias = tuple[Float[Tensor, "angles bins 2"], Float[Tensor, "angles bins 2"]]
"""A point (x, y) on each ray, and the ray's direction, of length 1."""

Seen: TypeAlias = tuple[Float[Tensor, "angles n"], Float[Tensor, "angles n"]]
"""Where points are seen along the detector, from the middle ray, and how much larger than they are."""

G = TypeVar("G", bound="Geometry")


def equidistant(count: int, end: float = math.pi) -> Float[Tensor, " angles"]:
    """Angles at equal distances from 0, the end left out, in radians, float64.

    Args:
        count: How many.
        end: Where they would begin again: π for parallel beams, 2π for fans.

    Raises:
        ConfigError: If there is none, or the end is not finite.

    Example:
        >>> equidistant(2).tolist()
        [0.0, 1.570...]
    """
    check_count("count", count)
    if not math.isfinite(end):
        raise ConfigError("a finite end", f"{end!r:.40}", "end=math.pi for parallel beams, 2 * math.pi for fans")
    return torch.arange(count, dtype=torch.float64) * (end / count)


@dataclass(frozen=True, eq=False)
class Geometry(abc.ABC):
    """Rays through an image of square pixels, which is centred on the axis of rotation.

    With x to the right and y upwards, both from the axis, the detector at angle θ lies along ``(cos θ, sin θ)`` and the
    rays, or the middle one of a fan, run along ``(−sin θ, cos θ)``. All lengths are in one unit of yours, such as mm;
    attenuation is then in its inverse, such as 1/mm, and a sinogram, its integral along rays, has no unit.

    Args:
        pixels: Height and width of the image, in pixels.
        angles: In radians.
        detector: Bins of the detector; ``None`` for as many as see the whole image.
        pixel_size: Side of a pixel.
        bin_size: Width of a bin of the detector; ``None`` for that of a pixel as the detector sees it.
        offset: How far the middle of the detector stands from where the middle ray meets it, along the detector.

    Raises:
        ConfigError: If a number makes no sense, or angles can only be degrees.
        DataError: If angles are not finite.
        TooLargeError: If rays or pixels would take more than 16 GiB.

    Warns:
        DataWarning: If angles look like degrees.
    """

    pixels: tuple[int, int]
    angles: Sequence[float] | Float[Tensor, " angles"]
    detector: int | None = None
    pixel_size: float = 1.0
    bin_size: float | None = None
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.pixels, tuple) or len(self.pixels) != 2:
            raise ConfigError("pixels as height and width", f"{self.pixels!r:.40}", "pixels=(128, 128)")
        for side in self.pixels:
            check_count("pixels", side)
        if self.detector is not None:
            check_count("detector", self.detector)
        check_positive_length("pixel_size", self.pixel_size)
        check_positive_length("bin_size", self.spacing)
        if not abs(self.offset) <= LONGEST:
            raise ConfigError("a finite offset", f"{self.offset!r:.40}", "a length in the unit of your pixels")
        object.__setattr__(self, "angles", in_radians(self.angles))
        pixels = math.prod(self.image)
        rays = math.prod(self.sinogram)
        hint = "a smaller image, or a larger unit of length"
        check_bytes("an image", 16 * pixels, MEMORY, f"{self.image} pixels, whose places take", hint)
        hint = "fewer bins of the detector, or wider ones"
        check_bytes("rays", 32 * rays, MEMORY, f"{self.sinogram} of them, whose places take", hint)

    @property
    @abc.abstractmethod
    def magnification(self) -> float:
        """How much larger than it is the detector sees what stands on the axis."""

    @abc.abstractmethod
    def rays(self) -> Rays:
        """The ray of each angle and bin, float64."""

    @abc.abstractmethod
    def shadow(self, points: Float[Tensor, "n 2"]) -> Seen:
        """Where each angle sees points (x, y), and how magnified, float64.

        Args:
            points: Within the image.
        """

    @property
    def slices(self) -> int:
        """Slices of the image above each other, each with a row of bins of its own."""
        return 1

    @property
    def theta(self) -> Float[Tensor, " angles"]:
        """The angles in radians, float64."""
        return torch.as_tensor(self.angles)

    @property
    def image(self) -> tuple[int, ...]:
        """Shape of an image, ``(height, width)``, or ``(slices, height, width)``."""
        return self.pixels

    @property
    def sinogram(self) -> tuple[int, ...]:
        """Shape of a sinogram, ``(angles, bins)``, or ``(angles, slices, bins)``."""
        return (len(self.theta), self.bins)

    @property
    def radius(self) -> float:
        """From the axis to the corners of the image."""
        return self.pixel_size * math.hypot(*self.pixels) / 2

    @property
    def spacing(self) -> float:
        """Width of a bin."""
        return self.pixel_size * self.magnification if self.bin_size is None else self.bin_size

    @property
    def bins(self) -> int:
        """Bins of the detector, of one slice."""
        return math.ceil(2 * self._reach / self.spacing) if self.detector is None else self.detector

    @property
    def positions(self) -> Float[Tensor, " bins"]:
        """Middles of the bins along the detector, from where the middle ray meets it; float64."""
        return _centred(self.bins) * self.spacing + self.offset

    @property
    def points(self) -> Float[Tensor, "pixels 2"]:
        """Middles (x, y) of the pixels of one slice, row by row from the top; float64."""
        height, width = self.pixels
        y, x = torch.meshgrid(-_centred(height), _centred(width), indexing="ij")
        return self.pixel_size * torch.stack([x, y], -1).flatten(0, 1)

    def select(self: G, index: Sequence[int] | Tensor) -> G:
        """The same tomograph at some of its angles.

        Args:
            index: Which: their numbers, or a mask of all.

        Raises:
            ConfigError: If there are no such angles.
        """
        count = len(self.theta)
        chosen = torch.as_tensor(index).cpu().reshape(-1)
        masks = chosen.dtype == torch.bool
        numbers = chosen.nonzero()[:, 0] if masks else chosen
        fits = len(chosen) == count if masks else bool(((chosen >= -count) & (chosen < count)).all())
        if not fits or not len(numbers) or numbers.is_floating_point():
            came = f"a mask of {len(chosen)} with {len(numbers)}" if masks else f"{chosen.tolist()!s:.40}"
            raise ConfigError(f"numbers of angles below {count}, or a mask of all {count}", came, "index=range(3)")
        return replace(self, angles=self.theta[numbers.long()])

    def check(self, sinogram: Tensor | Array | list[Any]) -> Float[Tensor, " rays"]:
        """A sinogram of this tomograph as one vector.

        Args:
            sinogram: In its own shape, or flat already.

        Raises:
            DataError: If a ray is NaN or infinite, with the place of the first.
            ShapeError: If it has another shape.

        Example:
            >>> from lapwing.ct.beams import Parallel2d
            >>> Parallel2d((3, 3), equidistant(2), detector=4).check(torch.zeros(2, 4)).shape
            torch.Size([8])
        """
        sinogram = as_tensor(sinogram)
        shape = self.sinogram
        came = tuple(sinogram.shape)
        if came not in (shape, (math.prod(shape),)):
            turned = "sinogram.T" if came == shape[::-1] else "the angles and detector= it was measured with"
            raise ShapeError(f"a sinogram {_axes(shape)} of shape {list(shape)}", f"{list(came)}", turned)
        check_rays(sinogram.reshape(shape))
        return sinogram.reshape(-1)

    @property
    def _reach(self) -> float:
        """How far from the middle ray the detector sees the image."""
        return self.radius


def check_positive_length(name: str, length: float) -> None:
    """Refuses what is no positive length, and what float32 could not hold with its squares and inverses.

    Raises:
        ConfigError: Naming it.
    """
    check_positive(name, length, "1.0")
    if not 1 / LONGEST <= length <= LONGEST:
        expected = f"a {name} from {1 / LONGEST:g} to {LONGEST:g}, which is finite in float32"
        raise ConfigError(expected, f"{length!r:.40}", "a unit of length near the size of your pixels")


def in_radians(angles: Any) -> Float[Tensor, " angles"]:
    """Angles as float64.

    Raises:
        ConfigError: If they can only be degrees.
        DataError: If they are not finite.
        ShapeError: If they are no vector.

    Warns:
        DataWarning: If they look like degrees: they span more than a turn, or are whole numbers, five or more.

    Example:
        >>> in_radians([0, 90])
        Traceback (most recent call last):
        ...
        lapwing.ground.errors.ConfigError: Expected angles in radians, at most 3π. Got values up to 90, ... degrees...
    """
    theta = torch.as_tensor(angles, dtype=torch.float64, device="cpu")
    if theta.ndim != 1 or not len(theta):
        raise ShapeError("angles as a vector [angles]", f"shape {list(theta.shape)}", "equidistant(60)")
    check_finite(theta, "angles", "leaving out those projections")
    largest = float(theta.abs().max())
    if largest > 3 * math.pi:  # a turn from any start
        raise ConfigError(
            "angles in radians, at most 3π",
            f"values up to {largest:g}, which look like degrees",
            "torch.deg2rad(angles), or angles % (2 * torch.pi) if they are radians of several turns",
        )
    turns = float(theta.max() - theta.min()) > 2 * math.pi * (1 + 1e-6)
    whole = len(theta.unique()) >= WHOLE and bool((theta == theta.round()).all())
    if turns or whole:
        seen = "whole numbers" if whole else "over a turn"
        came = f"from {float(theta.min()):g} to {float(theta.max()):g}, {seen}"
        hint = "Try torch.deg2rad(angles) if they are, or angles % (2 * torch.pi)"
        warn(f"angles look like degrees where radians are expected: they go {came}. {hint}", DataWarning)
    return theta


def check_real(values: Tensor, what: str) -> None:
    """Refuses whole and complex numbers.

    Raises:
        UnsupportedError: Naming their dtype.
    """
    if not values.is_floating_point():
        raise UnsupportedError(f"a {what} of real numbers", f"{values.dtype}", f"{what}.float()")


def check_rays(sinogram: Float[Tensor, "*shape"]) -> None:
    """Refuses rays that are NaN or infinite, and none at all.

    Raises:
        DataError: With the place of the first.
        ShapeError: If there is none.
    """
    if not sinogram.numel():
        raise ShapeError("a sinogram of at least one ray", f"{list(sinogram.shape)}", "the shape it was measured in")
    bad = (~torch.isfinite(sinogram)).nonzero()
    if len(bad):
        raise DataError(
            "a sinogram that is finite",
            f"{len(bad)} NaN or infinite rays of {sinogram.numel()}, the first at {ray_in_words(bad[0])}",
            "geometry.select(index) and sinogram[index] without their angles, or their neighbours' mean in their place",
        )


def ray_in_words(index: Int[Tensor, " axes"]) -> str:
    """A ray of a sinogram in words.

    Example:
        >>> ray_in_words(torch.tensor([3, 0, 7]))
        'angle 3, slice 0, bin 7'
    """
    names = {1: ("ray",), 2: ("angle", "bin")}.get(len(index), ("angle", "slice", "bin"))
    return ", ".join(f"{name} {i}" for name, i in zip(names, index.tolist(), strict=True))


def _axes(shape: tuple[int, ...]) -> str:
    return "[angles, bins]" if len(shape) == 2 else "[angles, slices, bins]"


def _centred(count: int) -> Float[Tensor, " count"]:
    return torch.arange(count, dtype=torch.float64) - (count - 1) / 2
