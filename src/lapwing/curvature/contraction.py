"""``J diag(v) Jᵀ`` of every example under many v at once: the products of its rows are made once."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.factors import Factor, Lookup, Outer

NUMBERS = 2**19
"""Products of rows made at a time: few enough to stay in a processor's cache."""


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
    width = max(1, NUMBERS // max(1, n * len(one)))
    for start in range(0, d, width):
        part = rows[..., start : start + width]
        found += (part[:, one] * part[:, other]) @ variances[..., start : start + width].mT
    whole = found.new_empty(n, k, k, found.shape[-1])
    whole[:, one, other] = found
    whole[:, other, one] = found
    return whole.movedim(-1, 0)
