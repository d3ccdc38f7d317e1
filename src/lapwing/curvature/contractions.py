"""Covariances of outputs under precisions without layers: rows of the Jacobian contracted with the whole of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.precision import wide, wide_like
from lapwing.jacobian.layers.base import contracted
from lapwing.linalg import LowRank, Structured

TOGETHER = 32
"""Examples whose whitened rows are made at a time, few enough to stay in the processor's cache."""


def whitened_rows(rows: Float[Tensor, "n k d"], precision: Structured) -> Float[Tensor, "n k r"]:
    """``J W`` with ``W Wᵀ = Λ⁻¹``."""
    return (precision.inverse_root().T @ rows.flatten(0, 1).mT).mT.view(*rows.shape[:2], -1)


def of_outer_products(
    inputs: Float[Tensor, "n i"], places: Int[Tensor, "c i"], inverse_root: Float[Tensor, "d d"]
) -> Float[Tensor, "n c c"]:
    """``J Λ⁻¹ Jᵀ`` for ``J = I ⊗ aᵀ``: the rows ``J L⁻ᵀ`` of all outputs are products of a, and J is not written.

    Args:
        inputs: a, the layer's inputs, its ones among them.
        places: Place among the weights of that of output k and input i.
        inverse_root: ``L⁻ᵀ`` for ``Λ = L Lᵀ``: what stands before the first weight of an output is zero in its rows.

    Cost:
        ``n c i d / 2`` multiplications, where solves with the rows of J would take ``n c d² / 2``.
    """
    firsts = [int(own.min()) for own in places]
    blocks = [inverse_root[own, first:] for own, first in zip(places, firsts, strict=True)]
    whitened = inputs.new_zeros(len(places), TOGETHER, len(inverse_root))
    found: list[Tensor] = []
    for part in inputs.split(TOGETHER):
        some = whitened[:, : len(part)]
        for output, (block, first) in enumerate(zip(blocks, firsts, strict=True)):
            some[output, :, first:] = part @ block
        by_example = some.transpose(0, 1)
        found.append(by_example @ by_example.mT)
    return torch.cat(found)


def multiples_of(first: LowRank, operators: Sequence[Structured]) -> list[tuple[float, float]] | None:
    """``(σ, τ)`` of each ``σ U Uᵀ + τ D`` beside the first, ``U Uᵀ + D``; ``None`` where one is no such sum."""
    found: list[tuple[float, float]] = []
    for operator in operators:
        if not isinstance(operator, LowRank) or operator.base is None or first.base is None:
            return None
        place = first.factor.abs().argmax()
        sigma = wide((operator.factor.flatten()[place] / first.factor.flatten()[place]).square())
        tau = wide(operator.base.values) / wide(first.base.values)
        rounding = 16 * torch.finfo(first.dtype).eps
        if bool(tau.max() > (1 + rounding) * tau.min()):
            return None
        found.append((float(sigma), float(tau[0])))
    return found


def low_rank(
    rows: Float[Tensor, "n k d"], first: LowRank, multiples: list[tuple[float, float]]
) -> Float[Tensor, "m n k k"]:
    """``J (σ U Uᵀ + τ D)⁻¹ Jᵀ`` for several σ and τ: ``(J D⁻¹ Jᵀ - Z diag(σ / (τ + σ m)) Zᵀ) / τ`` (Woodbury)."""
    whitened, seen, sizes = first.split(rows.flatten(0, 1))
    whole = wide(whitened.view(*rows.shape))
    sigma, tau = torch.tensor(multiples, **wide_like(rows)).unbind(1)
    gain = sigma[:, None] / (tau[:, None] + sigma[:, None] * sizes)
    taken = contracted(seen.view(*rows.shape[:2], -1), gain)
    return (((whole @ whole.mT) - taken) / tau[:, None, None, None]).to(rows)
