"""Class labels: integers from 0 on, and one that marks a position without a target."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from lapwing.ground.errors import DataError, ShapeError

IGNORED = -100
"""The label that marks a position without a target, as in ``torch.nn.functional.cross_entropy``."""


def check_target_shape(targets: Tensor, expected: tuple[int, ...], hint: str) -> None:
    """Raise unless ``targets`` has the expected shape.

    Raises:
        ShapeError: If it has another.
    """
    if tuple(targets.shape) != expected:
        raise ShapeError(f"targets of shape {list(expected)}", f"shape {list(targets.shape)}", hint)


def is_integral(values: Tensor) -> bool:
    """Whether a tensor holds integers (booleans are not)."""
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def canonical_labels(outputs: Tensor, targets: Tensor) -> Int[Tensor, "*batch"]:
    """Labels ``[n, *event]`` of outputs ``[n, *event, c]``, as 64-bit integers on their device.

    Raises:
        DataError: If they are no integers.
        ShapeError: If there is not one a position.
    """
    if not is_integral(targets):
        raise DataError(
            "integer class labels for Categorical",
            f"targets of type {targets.dtype}",
            "targets.long() for labels held as floats or bools, targets.argmax(-1) for one-hot labels, "
            "Bernoulli() for many labels at once, or Gaussian() for regression",
        )
    check_target_shape(
        targets,
        tuple(outputs.shape[:-1]),
        "targets.squeeze(-1) for labels [n, 1], targets.argmax(-1) for one-hot labels, event_dim=1 for one label a "
        "token, or event_dim=2 for one a pixel (with class_dim=1 where channels come first)",
    )
    return targets.to(device=outputs.device, dtype=torch.long)


def check_labels(labels: Int[Tensor, "*target"], classes: int) -> None:
    """Refuses labels of other classes.

    Raises:
        DataError: Naming how many, and from where to where.
    """
    outside = labels[(labels != IGNORED) & ((labels < 0) | (labels >= classes))]
    if outside.numel():
        several = "renumbering the labels from 0, or a network with one output a class"
        single = "Bernoulli() for one output and labels 0 and 1, or a network with one output a class"
        raise DataError(
            f"labels from 0 to {classes - 1}, or {IGNORED} to ignore, for {classes} outputs",
            f"{outside.numel()} labels outside, from {int(outside.min())} to {int(outside.max())}",
            several if classes > 1 else single,
        )
