"""Images whose pixels come from elsewhere."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from lapwing.evaluation.corruptions.noise import uniform
from lapwing.ground import probes


def rotation(
    x: Float[Tensor, "n ch h w"], degrees: float, generator: torch.Generator | None
) -> Float[Tensor, "n ch h w"]:
    """Turned about the middle by ``degrees``, a random half of the images to the left and the others to the right."""
    side = uniform([len(x)], like=x, generator=generator) < 0.5
    angle = torch.where(side, 1.0, -1.0).to(x)[:, None, None] * math.radians(degrees)
    rows, columns = _middle(x)
    down = (angle.cos() - 1) * rows - angle.sin() * columns
    right = angle.sin() * rows + (angle.cos() - 1) * columns
    return resample(x, torch.stack([down, right], -1))


def elastic(x: Float[Tensor, "n ch h w"], shift: float, generator: torch.Generator | None) -> Float[Tensor, "n ch h w"]:
    """Each pixel moved by a smooth random field, ``shift`` pixels in root mean square along each axis."""
    n, _, h, w = x.shape
    coarse = [max(2, round(4 * side / min(h, w))) for side in (h, w)]
    field = probes.gaussian([n, 2, *coarse], like=x, generator=generator)
    smooth = functional.interpolate(field, (h, w), mode="bicubic", align_corners=True)
    smooth = smooth / smooth.square().mean((-3, -2, -1), keepdim=True).sqrt()
    return resample(x, shift * smooth.movedim(1, -1))


def resample(x: Float[Tensor, "n ch h w"], shift: Float[Tensor, "#n #h #w 2"]) -> Float[Tensor, "n ch h w"]:
    """Each pixel taken ``shift`` further down and to the right, between pixels linearly, beyond the border the border.

    Args:
        x: Images.
        shift: Pixels down and right, one pair for all pixels of an image or one for each.
    """
    n, _, h, w = x.shape
    rows, columns = _middle(x)
    down = (rows + shift[..., 0]).expand(n, h, w) * (2 / h)
    right = (columns + shift[..., 1]).expand(n, h, w) * (2 / w)
    grid = torch.stack([right, down], -1)
    return functional.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _middle(x: Float[Tensor, "n ch h w"]) -> tuple[Float[Tensor, "h 1"], Float[Tensor, "1 w"]]:
    """Rows and columns of the pixels, counted from the middle of the image."""
    rows, columns = (torch.arange(side, device=x.device, dtype=x.dtype) - (side - 1) / 2 for side in x.shape[2:])
    return rows[:, None], columns[None]
