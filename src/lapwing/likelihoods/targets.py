"""What targets must look like: shapes, types and values, each failure a sentence."""

from __future__ import annotations

import torch
from torch import Tensor

from lapwing.ground.errors import ShapeError

IGNORED = -100
"""The label that marks a position without a target, as in ``torch.nn.functional.cross_entropy``."""


def is_integral(values: Tensor) -> bool:
    """Whether a tensor holds integers (booleans are not)."""
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def check_shape(targets: Tensor, expected: tuple[int, ...], hint: str) -> None:
    """Raise unless ``targets`` has the expected shape.

    Raises:
        ShapeError: If it has another.
    """
    if tuple(targets.shape) != expected:
        raise ShapeError(f"targets of shape {list(expected)}", f"shape {list(targets.shape)}", hint)


def elementwise(targets: Tensor, like: Tensor, class_dim: int, hint: str) -> Tensor:
    """Targets with one number for each number of ``like`` ``[n, *event, m]``, in its dtype.

    Args:
        targets: ``[n, *event, m]``, its last axis at ``class_dim``; or ``[n, *event]`` where m is 1.
        like: Tensor whose shape, dtype and device the targets take.
        class_dim: Axis of the m numbers in ``targets``.
        hint: What to try when the shape is wrong.

    Raises:
        ShapeError: If the shape is another.
    """
    if like.shape[-1] == 1 and targets.shape == like.shape[:-1]:
        targets = targets.unsqueeze(-1)
    elif targets.ndim == like.ndim:
        targets = targets.movedim(class_dim, -1)
    check_shape(targets, tuple(like.shape), hint)
    return targets.to(like)
