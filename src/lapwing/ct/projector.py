"""Line integrals of an image along rays, as one sparse matrix."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ct.geometry import Geometry
from lapwing.ct.operators import ForwardOperator
from lapwing.ground.errors import check_bytes, check_kind
from lapwing.ground.moving import Mover
from lapwing.ground.shared import fields_of

ENTRIES = 2**22
"""Entries of the matrix that are computed at once, of 64 bytes or so each."""


@final
@dataclass(frozen=True, eq=False)
class Projector(ForwardOperator):
    """The line integrals of an image along the rays of a tomograph.

    A ray crosses the image column by column, or row by row where it is steeper than the diagonal, and reads each by
    linear interpolation between the two nearest pixels (Joseph 1982). The weights are one sparse matrix, which is built
    at the first product, and its transpose: the adjoint is exact. Slices share it.

    Args:
        geometry: Where the rays run.
        dtype: Of images and sinograms.
        device: Where they are.

    Cost:
        At most ``4 max(height, width)`` entries a ray and slice plane, the transpose included, each a number and an
        int32: 32 bytes times ``max(height, width)`` a ray in float32. ``bytes`` tells.

    Example:
        >>> from lapwing.ct.beams import Parallel2d
        >>> from lapwing.ct.geometry import equidistant
        >>> projector = Projector(Parallel2d(pixels=(2, 2), angles=equidistant(2), detector=2))
        >>> projector.push(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist()
        [4.0, 6.0, 7.0, 3.0]
    """

    geometry: Geometry
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        check_kind("geometry", self.geometry, (Geometry,), "Parallel2d(pixels=(128, 128), angles=equidistant(60))")

    def __getstate__(self) -> dict[str, Any]:
        """What pickle and ``copy`` take: the fields; the matrix is built again."""
        return fields_of(self)

    def moved_by(self, mover: Mover) -> Projector:
        """See ``Movable``; the matrix is built again there."""
        return replace(self, device=mover.device)

    @property
    def shape(self) -> tuple[int, int]:
        """See ``ForwardOperator``."""
        return math.prod(self.geometry.sinogram), math.prod(self.geometry.image)

    @property
    def like(self) -> Tensor:
        """See ``ForwardOperator``."""
        return torch.empty(0, dtype=self.dtype, device=self.device)

    @property
    def bytes(self) -> int:
        """Bytes of the matrix and its transpose."""
        values = self.matrix.values()
        return 2 * values.numel() * (values.itemsize + 4) + 4 * (sum(self.matrix.shape) + 2)

    @cached_property
    def matrix(self) -> Float[Tensor, "rays pixels"]:
        """The weights of one slice, sparse by rows.

        Raises:
            TooLargeError: If int32 cannot number its entries.
        """
        rays = len(self.geometry.theta) * self.geometry.bins
        pixels = math.prod(self.geometry.pixels)
        needed = 2 * rays * max(self.geometry.pixels) * (self.like.itemsize + 4)
        got = f"{rays:,} rays through {self.geometry.pixels} pixels, which need up to"
        check_bytes("a projector", needed, 2**31 * (self.like.itemsize + 4), got, "fewer angles, bins or pixels")
        counts, columns, values = zip(*_entries(self.geometry), strict=True)
        starts = torch.cat([torch.zeros(1, dtype=torch.long), torch.cat(counts).cumsum(0)])
        return self._compressed(starts, torch.cat(columns), torch.cat(values).to(self.dtype), (rays, pixels))

    @cached_property
    def transposed(self) -> Float[Tensor, "pixels rays"]:
        """The same, sparse by pixels."""
        columns = self.matrix.to_sparse_csc()
        rays, pixels = self.matrix.shape
        return self._compressed(columns.ccol_indices(), columns.row_indices(), columns.values(), (pixels, rays))

    def select(self, index: Sequence[int] | Tensor) -> Projector:
        """The projector of some of the angles: those blocks of rows.

        Args:
            index: Which: their numbers, or a mask of all.

        Raises:
            ConfigError: If there are no such angles.
        """
        return replace(self, geometry=self.geometry.select(index))

    def _forward(self, block: Float[Tensor, "pixels k"]) -> Float[Tensor, "rows k"]:
        slices = self.geometry.slices
        angles = len(self.geometry.theta)
        side_by_side = block.unflatten(0, (slices, -1)).movedim(0, 1).flatten(1)
        seen = (self.matrix @ side_by_side).unflatten(1, (slices, -1)).unflatten(0, (angles, -1))
        return seen.movedim(2, 1).flatten(0, 2)

    def _adjoint(self, block: Float[Tensor, "rows k"]) -> Float[Tensor, "pixels k"]:
        slices = self.geometry.slices
        angles = len(self.geometry.theta)
        side_by_side = block.unflatten(0, (angles, slices, -1)).movedim(1, 2).flatten(0, 1).flatten(1)
        return (self.transposed @ side_by_side).unflatten(1, (slices, -1)).movedim(1, 0).flatten(0, 1)

    def _compressed(self, starts: Tensor, columns: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
            return torch.sparse_csr_tensor(
                starts.int(), columns.int(), values, size=size, device=self.device, check_invariants=False
            )


def _entries(geometry: Geometry, entries: int = ENTRIES) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Entries of each ray, their pixels in order, and their weights, for some rays after others."""
    origin, direction = (part.flatten(0, 1) for part in geometry.rays())
    step = max(1, entries // (2 * max(geometry.pixels)))
    for points, directions in zip(origin.split(step), direction.split(step), strict=True):
        across = directions[:, 0].abs() >= directions[:, 1].abs()
        found = [
            _crossings(geometry, points, directions, along, chosen) for along, chosen in ((0, across), (1, ~across))
        ]
        ray, pixel, weight = (torch.cat(parts) for parts in zip(*found, strict=True))
        order = torch.argsort(ray * math.prod(geometry.pixels) + pixel)
        yield ray.bincount(minlength=len(points)), pixel[order], weight[order]


def _crossings(
    geometry: Geometry, points: Float[Tensor, "n 2"], directions: Float[Tensor, "n 2"], along: int, chosen: Tensor
) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"], Float[Tensor, " m"]]:
    """Rays, pixels and weights where the chosen rays cross each column (``along`` 0) or each row (1)."""
    height, width = geometry.pixels
    turn = torch.tensor([1.0, -1.0], dtype=torch.float64)  # rows count downwards
    middle = torch.tensor([width - 1, height - 1], dtype=torch.float64) / 2
    start = (points * turn / geometry.pixel_size + middle)[chosen]
    towards = (directions * turn)[chosen]
    steps, side = (width, height) if along == 0 else (height, width)
    at = torch.arange(steps)
    slope = towards[:, 1 - along] / towards[:, along]
    crossing = start[:, 1 - along, None] + (at - start[:, along, None]) * slope[:, None]
    below = crossing.floor()
    nearest = torch.stack([below, below + 1], -1).long()
    fraction = crossing - below
    weight = torch.stack([1 - fraction, fraction], -1) * (geometry.pixel_size / towards[:, along].abs())[:, None, None]
    inside = (nearest >= 0) & (nearest < side) & (weight > 0)
    pixel = at[:, None] + nearest * width if along == 0 else at[:, None] * width + nearest
    return chosen.nonzero()[inside.nonzero()[:, 0], 0], pixel[inside], weight[inside]
