"""Functions spelled out in ordinary operations, whose fused kernels lack derivatives or have wrong ones.

Embedding bags have neither a forward mode nor a second gradient; the second gradient of weight normalisation is wrong;
bilinear maps cannot be vectorised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class SpelledOut(TorchFunctionMode):
    """Embedding bags, weight normalisation and bilinear maps go through ``SPELLED`` while it is active."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return SPELLED.get(func, func)(*args, **(kwargs or {}))


def bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """``torch.nn.functional.embedding_bag`` as lookups, and their sum, mean or maximum over each bag.

    The arguments and the result are those of the PyTorch function; options that change a gradient or the weight have
    no effect.

    Example:
        >>> table, tokens = torch.arange(8.0).view(4, 2), torch.tensor([[0, 1], [3, 3]])
        >>> bag(tokens, table, mode="sum").tolist()
        [[2.0, 4.0], [12.0, 14.0]]
    """
    if offsets is None:
        rows, tokens, member = F.embedding(input, weight), input, torch.ones_like(input, dtype=torch.bool)
    else:
        starts = offsets[:-1] if include_last_offset else offsets
        place = torch.arange(len(input), device=input.device)
        owner = (place[:, None] >= starts).sum(1) - 1
        member = owner == torch.arange(len(starts), device=input.device)[:, None]
        rows, tokens = F.embedding(input, weight)[None], input[None]
    if padding_idx is not None:
        member = member & (tokens != padding_idx % len(weight))
    if mode == "max":
        filled = rows.masked_fill(~member[..., None], -torch.inf).amax(1)
        return filled.masked_fill(~member.any(1, keepdim=True), 0.0)
    share = member.to(weight)
    if per_sample_weights is not None:
        share = share * per_sample_weights.view(tokens.shape)
    total = (share[:, None] @ rows).squeeze(1)
    return total / member.sum(1, keepdim=True).clamp_min(1) if mode == "mean" else total


def scaled_direction(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """``g v / |v|``, a norm for each entry of an axis, or one for all where that is -1: ``torch._weight_norm``.

    Example:
        >>> scaled_direction(torch.tensor([[3.0, 4.0]]), torch.tensor([[10.0]])).tolist()
        [[6.0, 8.0]]
    """
    others = [axis for axis in range(v.ndim) if axis != dim]
    return v * (g / torch.linalg.vector_norm(v, dim=others, keepdim=True))


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.bilinear``: ``x1ᵀ W_o x2 + b_o`` for each output o.

    Example:
        >>> bilinear(torch.tensor([1.0, 2.0]), torch.tensor([3.0]), torch.tensor([[[5.0], [7.0]]])).tolist()
        [57.0]
    """
    products = torch.einsum("...i,oij,...j->...o", input1, weight, input2)
    return products if bias is None else products + bias


SPELLED: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.bilinear: bilinear,
    F.embedding_bag: bag,
    torch._weight_norm: scaled_direction,  # pyright: ignore[reportPrivateUsage]
}
"""What replaces which function."""
