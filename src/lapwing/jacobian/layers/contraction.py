"""``J diag(v) Jᵀ`` of every example under many v at once: the products of its rows are made once."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.jacobian.layers.factors import Factor, Lookup, Outer

NUMBERS = 2**19
"""Products of rows made at a time: few enough to stay in a processor's cache."""

WIDTH = 512
"""Columns of them, at most: enough for a matrix product."""


def covariances(factor: Factor, variances: Float[Tensor, "m d"]) -> Float[Tensor, "m n k k"]:
    """``J diag(v) Jᵀ`` of each example for each variance v.

    Args:
        factor: What a layer contributes to the Jacobian.
        variances: v, in the order of the factor's weights.

    Cost:
        For each row the products with the others, and a matrix product of them with the variances; about a quarter of
        as many calls of ``factor.covariance``.
    """
    if len(variances) == 1:
        return factor.covariance(variances[0])[None]
    if isinstance(factor, Outer) and factor.positions == 1:
        scale = torch.stack([factor.matrix(variance) for variance in variances])
        spread = torch.einsum("npi,mpoi->nmpo", factor.columns.squeeze(-1).square(), scale)
        return contracted(factor.g.squeeze(-1).flatten(2), spread.flatten(2))
    if isinstance(factor, Lookup):
        example, row, summed = factor.used
        each = contracted(summed, variances.view(len(variances), *factor.shape)[:, row].transpose(0, 1))
        n, k = factor.index.shape[0], summed.shape[1]
        return each.new_zeros(len(variances), n, k, k).index_add_(1, example, each)
    return contracted(factor.rows(), variances)


def contracted(rows: Float[Tensor, "n k d"], variances: Float[Tensor, "*n m d"]) -> Float[Tensor, "m n k k"]:
    """``R diag(v) Rᵀ`` of each block of rows R.

    Args:
        rows: R.
        variances: v, the same for all blocks or for each its own.

    Example:
        >>> contracted(torch.ones(1, 2, 3), torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 1.0]])).tolist()
        [[[[3.0, 3.0], [3.0, 3.0]]], [[[1.0, 1.0], [1.0, 1.0]]]]
    """
    n, k, d = rows.shape
    one, other = torch.triu_indices(k, k, device=rows.device)
    found = rows.new_zeros(n, len(one), variances.shape[-2])
    each = max(1, NUMBERS // (WIDTH * max(1, len(one))))
    for first in range(0, n, each):
        some = slice(first, first + each)
        own = variances if variances.ndim == 2 else variances[some]
        for start in range(0, d, WIDTH):
            part = rows[some, :, start : start + WIDTH]
            products = torch.cat([part[:, i, None] * part[:, i:] for i in range(k)], 1)
            found[some] += products @ own[..., start : start + WIDTH].mT
    whole = found.new_empty(n, k, k, found.shape[-1])
    whole[:, one, other] = found
    whole[:, other, one] = found
    return whole.movedim(-1, 0)
