"""Every corruption by its name and severity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.evaluation.corruptions.kinds import (
    brightness,
    contrast,
    defocus_blur,
    elastic,
    fog,
    gaussian_blur,
    gaussian_noise,
    impulse_noise,
    jpeg,
    motion_blur,
    occlusion,
    pixelate,
    rotation,
    shot_noise,
)
from lapwing.ground.data import check_finite
from lapwing.ground.errors import DataError, ShapeError, check_count, check_kind, check_option

Change: TypeAlias = Callable[[Tensor, float, torch.Generator | None], Tensor]

SEVERITIES = (1, 2, 3, 4, 5)
"""From hardly visible to plain, to a network that was not trained on it."""


@final
@dataclass(frozen=True)
class Corruption:
    """A change of images and its strength at each severity.

    Args:
        change: The change.
        levels: Its strength at each of ``SEVERITIES``.
        length: Whether the strength is in pixels of an image of 32, and grows with the image.
    """

    change: Change
    levels: tuple[float, float, float, float, float]
    length: bool = False


KINDS = {
    "gaussian_noise": Corruption(gaussian_noise, (0.02, 0.035, 0.05, 0.07, 0.1)),
    "shot_noise": Corruption(shot_noise, (1500.0, 700.0, 350.0, 170.0, 80.0)),
    "impulse_noise": Corruption(impulse_noise, (0.005, 0.01, 0.02, 0.04, 0.07)),
    "gaussian_blur": Corruption(gaussian_blur, (0.4, 0.55, 0.7, 0.85, 1.05), length=True),
    "defocus_blur": Corruption(defocus_blur, (0.6, 0.8, 1.0, 1.25, 1.5), length=True),
    "motion_blur": Corruption(motion_blur, (1.0, 1.75, 2.5, 3.5, 5.0), length=True),
    "brightness": Corruption(brightness, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": Corruption(contrast, (0.7, 0.5, 0.4, 0.3, 0.22)),
    "fog": Corruption(fog, (0.2, 0.35, 0.45, 0.55, 0.65)),
    "occlusion": Corruption(occlusion, (0.15, 0.22, 0.3, 0.38, 0.46)),
    "pixelate": Corruption(pixelate, (0.92, 0.84, 0.75, 0.65, 0.5)),
    "jpeg": Corruption(jpeg, (70.0, 45.0, 28.0, 16.0, 9.0)),
    "rotation": Corruption(rotation, (6.0, 12.0, 18.0, 25.0, 33.0)),
    "elastic": Corruption(elastic, (0.4, 0.7, 1.0, 1.35, 1.7), length=True),
}

CORRUPTIONS = tuple(KINDS)
"""The names of all corruptions."""


def corrupt(
    x: Tensor, name: str, severity: int, *, generator: torch.Generator | None = None
) -> Float[Tensor, "n ch h w"]:
    """Images with one corruption, in [0, 1] again.

    Types of less than 32 bits are computed in float32. Where a corruption is random each image has its own noise,
    direction or place.

    Args:
        x: Images ``[n, ch, h, w]``, intensities in [0, 1], before any standardisation.
        name: One of ``CORRUPTIONS``.
        severity: From 1 to 5.
        generator: Source of randomness; ``None`` draws from PyTorch's global one.

    Returns:
        Images of the same shape, type and device.

    Raises:
        ConfigError: Another name or severity.
        ShapeError: Not four axes, or an axis of length 0.
        DataError: Not real numbers, or some not finite or outside [0, 1].

    Example:
        >>> x = torch.rand(2, 3, 32, 32)
        >>> [float((corrupt(x, "contrast", severity) - x).abs().mean() > 0.1) for severity in (1, 5)]
        [0.0, 1.0]
    """
    check_known(name, severity)
    _check_images(x)
    kind = KINDS[name]
    level = kind.levels[severity - 1] * (min(x.shape[2:]) / 32 if kind.length else 1)
    exact = x.detach().to(x.dtype if torch.finfo(x.dtype).bits >= 32 else torch.float32)
    return kind.change(exact, level, generator).clamp(0, 1).to(x.dtype)


def check_known(name: str, severity: int) -> None:
    """Refuses a corruption or a severity that there is not.

    Raises:
        ConfigError: Naming those there are.
    """
    check_option("name", name, CORRUPTIONS)
    check_option("severity", severity, SEVERITIES)
    check_count("severity", severity)


def _check_images(x: Tensor) -> None:
    check_kind("x", x, (Tensor,), "a tensor of images, such as torch.from_numpy(x)")
    if x.ndim != 4:
        raise ShapeError("images [n, ch, h, w]", f"shape {list(x.shape)}", "x[:, None] for grey images [n, h, w]")
    if not x.numel():
        raise ShapeError("at least one image [n, ch, h, w]", f"nothing, of shape {list(x.shape)}", "a batch of images")
    if not x.is_floating_point():
        raise DataError("real intensities in [0, 1]", f"type {x.dtype}", "x / 255 for bytes")
    check_finite(x, "images", "cleaning the data")
    low, high = float(x.min()), float(x.max())
    if low < 0 or high > 1:
        hint = "pixels before they are standardised, and transform= for what the network takes"
        raise DataError("intensities in [0, 1]", f"{low:.3g} to {high:.3g}", hint)
