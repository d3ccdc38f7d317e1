"""Training images changed so strongly that a network which fits them errs on some, in the place of held-out images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lapwing.ground import probes

SHIFT = 4
"""Most pixels an image of 32 is moved by in each direction."""


@dataclass(frozen=True)
class Strength:
    """How far images are changed, in units of the standardised intensities.

    Args:
        light: Standard deviation of the change of brightness, and of the logarithm of the contrast.
        noise: Largest standard deviation of the noise.
        hole: Side of the square that is blanked, as a part of the image's.
    """

    light: float
    noise: float
    hole: float


STRENGTHS = {"mild": Strength(0.1, 0.05, 0.25), "strong": Strength(0.2, 0.1, 0.25)}


def augmentation(strength: Strength) -> Callable[[Tensor, torch.Generator], Tensor]:
    """Mirrored, moved, with other light, noise and a hole; each image on its own."""

    def augment(images: Tensor, generator: torch.Generator) -> Tensor:
        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator).to(images)

        def normal(*shape: int) -> Tensor:
            return probes.gaussian(shape, like=images, generator=generator)

        n, _, h, w = images.shape
        x = moved(torch.where(uniform(n, 1, 1, 1) < 0.5, images, images.flip(-1)), uniform(n, 2), SHIFT * h // 32)
        x = x * (strength.light * normal(n, 1, 1, 1)).exp() + strength.light * normal(n, 1, 1, 1)
        x = x + strength.noise * uniform(n, 1, 1, 1) * normal(*x.shape)
        side = round(strength.hole * h)
        down, right = ((uniform(n, 1) * (length - side + 1)).floor() for length in (h, w))
        rows, columns = (torch.arange(length, device=x.device).expand(n, -1) for length in (h, w))
        inside = ((rows >= down) & (rows < down + side))[:, :, None]
        inside = inside & ((columns >= right) & (columns < right + side))[:, None]
        return x.masked_fill(inside[:, None], 0.0)

    return augment


def moved(images: Tensor, shares: Tensor, most: int) -> Tensor:
    """Images moved by up to ``most`` pixels in each direction, mirrored at the edges.

    Args:
        images: ``[n, ch, h, w]``.
        shares: Two numbers in [0, 1) an image, down and right.
        most: Pixels.
    """
    _, _, h, w = images.shape
    wide = functional.pad(images, (most,) * 4, mode="reflect")
    start = (shares * (2 * most + 1)).long()
    rows = start[:, :1] + torch.arange(h, device=images.device)
    columns = start[:, 1:] + torch.arange(w, device=images.device)
    picked = wide.gather(2, rows[:, None, :, None].expand(-1, wide.shape[1], -1, wide.shape[3]))
    return picked.gather(3, columns[:, None, None, :].expand(-1, wide.shape[1], h, -1))
