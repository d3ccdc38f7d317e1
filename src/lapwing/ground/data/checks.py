"""Values that cannot be used are refused: with a name for them and what to try."""

from __future__ import annotations

import torch
from torch import Tensor

from lapwing.ground.errors import DataError, describe


def check_there(values: Tensor, what: str) -> None:
    """Raise if a tensor has no values, as on the meta device."""
    if values.is_meta:
        came = f"{describe(values)} on the meta device, which holds shapes alone"
        raise DataError(f"{what} with values", came, "tensors of device='cpu'")


def check_finite(values: Tensor, what: str, hint: str) -> None:
    """Raise unless every entry is finite, with a name for the values and what to try; integers always pass."""
    check_there(values, what)
    if bool(values.detach().sum().isfinite()):  # one number, before a mask of all is made
        return
    if bad := int((~torch.isfinite(values)).sum()):
        raise DataError(f"finite {what}", f"{bad} NaN or infinite of {values.numel()}", hint)


def check_whole_counts(targets: Tensor, whose: str) -> None:
    """Refuse targets that are no counts, NaN and infinite ones included.

    Args:
        targets: What should be counts, in floating point.
        whose: For what, in the message.

    Raises:
        DataError: Naming the first that is none.
    """
    wrong = targets[(targets < 0) | (targets != targets.round()) | targets.isinf()]
    if wrong.numel():
        raise DataError(
            f"counts 0, 1, 2, ... for {whose}",
            f"{wrong.numel()} other targets, the first {wrong[0].item():g}",
            "Gaussian() for real targets",
        )
