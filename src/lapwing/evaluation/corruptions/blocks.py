"""What storing an image in too few bytes does."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

SIDE = 8
"""Side of the blocks that JPEG transforms, pixels."""

LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
"""Step of each coefficient at quality 50, in 1/255 of full intensity (ITU-T T.81, table K.1)."""


def pixelate(
    x: Float[Tensor, "n ch h w"], share: float, generator: torch.Generator | None = None
) -> Float[Tensor, "n ch h w"]:
    """Divided into ``share`` as many rows and columns as there are, each cell with its mean."""
    rows, columns = (_cells(side, max(1, round(share * side)), x) for side in x.shape[2:])
    return rows @ x @ columns.mT


def jpeg(
    x: Float[Tensor, "n ch h w"], quality: float, generator: torch.Generator | None = None
) -> Float[Tensor, "n ch h w"]:
    """Cosine coefficients of 8 × 8 blocks rounded to JPEG's steps at a ``quality`` of 1 to 100.

    Each channel on its own, by the table for luminance: the loss of JPEG without its change of colours.
    """
    n, channels, h, w = x.shape
    padded = functional.pad(x, (0, -w % SIDE, 0, -h % SIDE), mode="replicate")
    tall, wide = padded.shape[2] // SIDE, padded.shape[3] // SIDE
    blocks = (255 * padded - 128).reshape(n, channels, tall, SIDE, wide, SIDE).transpose(3, 4)
    scale = 50 / quality if quality < 50 else 2 - quality / 50
    steps = (torch.tensor(LUMINANCE, dtype=x.dtype, device=x.device) * scale).round().clamp(1, 255)
    cosines = _cosines(x)
    kept = ((cosines @ blocks @ cosines.mT) / steps).round() * steps
    back = (cosines.mT @ kept @ cosines).transpose(3, 4).reshape(padded.shape)
    return ((back + 128) / 255)[..., :h, :w]


def _cosines(like: Tensor) -> Float[Tensor, "8 8"]:
    """The orthonormal discrete cosine transform of a block, one frequency a row."""
    at = torch.arange(SIDE, dtype=torch.float64)
    rows = torch.cos(math.pi / SIDE * at[:, None] * (at + 0.5)) * math.sqrt(2 / SIDE)
    rows[0] *= math.sqrt(0.5)
    return rows.to(like)


def _cells(side: int, count: int, like: Tensor) -> Float[Tensor, "side side"]:
    """The matrix that gives each of ``side`` pixels the mean of its cell of ``count``."""
    cell = torch.arange(side, device=like.device) * count // side
    same = (cell[:, None] == cell).to(like.dtype)
    return same / same.sum(1, keepdim=True)
