"""Orthonormal contrasts between classes: the directions of logits that probabilities see."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def contrasts(c: int) -> Float[Tensor, "c c-1"]:
    """Orthonormal directions in which c ≥ 2 logits differ: Helmert's, each class against the mean of those before it.

    Example:
        >>> contrasts(2)[:, 0]
        tensor([ 0.7071, -0.7071], dtype=torch.float64)
    """
    sizes = torch.arange(1, c, dtype=torch.float64, device="cpu")
    helmert = torch.ones(c, c - 1, dtype=torch.float64, device="cpu").triu() - torch.diag(sizes, -1)[:, :-1]
    return helmert / (sizes * (sizes + 1)).sqrt()


def into_contrasts(block: Float[Tensor, "*batch c k"]) -> Float[Tensor, "*batch c-1 k"]:
    """``Hᵀ X`` for the ``contrasts`` H, by sums of the rows before each: as many operations as X has entries.

    Example:
        >>> into_contrasts(torch.eye(2, dtype=torch.float64))
        tensor([[ 0.7071, -0.7071]], dtype=torch.float64)
    """
    sizes = torch.arange(1, block.shape[-2], dtype=block.dtype, device=block.device)[:, None]
    before = block[..., :-1, :].cumsum(-2)
    return (before - sizes * block[..., 1:, :]) / (sizes * (sizes + 1)).sqrt()


def from_contrasts(block: Float[Tensor, "*batch r k"]) -> Float[Tensor, "*batch c k"]:
    """``H Y`` for the ``contrasts`` H of c = r + 1 classes, in the same way.

    Example:
        >>> from_contrasts(torch.ones(1, 1, dtype=torch.float64))
        tensor([[ 0.7071],
                [-0.7071]], dtype=torch.float64)
    """
    sizes = torch.arange(1, block.shape[-2] + 1, dtype=block.dtype, device=block.device)[:, None]
    scaled = block / (sizes * (sizes + 1)).sqrt()
    after = scaled.flip(-2).cumsum(-2).flip(-2)
    none = torch.zeros_like(block[..., :1, :])
    return torch.cat([after, none], -2) - torch.cat([none, sizes * scaled], -2)
