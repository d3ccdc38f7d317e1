"""Covariances of a head's outputs as quadratic forms of its inputs: ``(J Σ Jᵀ)_kl = aᵀ Σ_kl a``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lapwing.ground.precision import wide
from lapwing.linalg.cholesky import cholesky_or_none

RUN = 16
"""Inputs that are multiplied with themselves and all later ones at a time."""

TOGETHER = 256
"""Examples whose products of inputs are made at a time, few enough to stay in the processor's cache."""

DIGITS = 0.125
"""Roundings of the outputs by which a variance may be off for the rounding of Σ."""

LEAST = 1 / 32
"""Variance of an output, at least, over that in which products are rounded: a smaller one would show it."""


@final
@dataclass(frozen=True, eq=False)
class QuadraticForms:
    """The blocks Σ_kl of the covariance of a head's weights, laid out for products of pairs of its inputs.

    What all outputs share, ``U = Σ_kl Σ_kl / c²``, is taken out and has float64: a softmax does not see it, and under a
    weak prior it is most of a variance. For the rest ``D_kl = Σ_kl - U`` inputs are whitened by its mean,
    ``Σ_k D_kk / c = F Fᵀ``: with ``b = Fᵀ a`` the mean variance is |b|², and entries of ``C_kl = F⁻¹ D_kl F⁻ᵀ`` are of
    the size of one, so that products in the precision of the outputs are as exact as these. A pair of inputs is
    multiplied once, for all pairs of outputs.

    Args:
        shared: U, float64.
        whitening: F, float64.
        blocks: For each run of inputs the entries ``[(c + 1) c / 2, run × later]`` of C for all pairs of outputs, those
            of two inputs in either order added up.
        sizes: Absolute values of the diagonal of ``C_kk``, an output a row.
        diagonal: Variance of each weight, an output a row; float64.
        of_pair: Which pair of outputs two are.
    """

    shared: Float[Tensor, "i i"]
    whitening: Float[Tensor, "i i"]
    blocks: tuple[Float[Tensor, "pairs _"], ...]
    sizes: Float[Tensor, "c i"]
    diagonal: Float[Tensor, "c i"]
    of_pair: Int[Tensor, "c c"]

    def covariances(self, inputs: Float[Tensor, "n i"]) -> tuple[Float[Tensor, "n c c"], Bool[Tensor, " n"]]:
        """``aᵀ Σ_kl a`` of all pairs of outputs, float64, and of which examples some are not known to rounding.

        Args:
            inputs: a, the layer's inputs, its ones among them.

        Cost:
            ``n c² i² / 4`` multiplications in the precision of the outputs, where rows ``J L⁻ᵀ`` would take twice as
            many in float64.
        """
        exact = wide(inputs)
        shared = ((exact @ self.shared) * exact).sum(1)
        whitened = (exact @ self.whitening).to(self.sizes)
        rest = self._products(whitened)
        covariances = shared[:, None, None] + wide(rest)[:, self.of_pair]
        squares = whitened.square()
        sizes = torch.maximum(squares @ self.sizes.mT, squares.sum(1, keepdim=True))
        rounding = torch.finfo(exact.dtype).eps / (DIGITS * torch.finfo(rest.dtype).eps)
        least = torch.maximum(rounding * (exact.square() @ self.diagonal.mT), LEAST * wide(sizes))
        known = (covariances.diagonal(dim1=1, dim2=2) >= least).all(1)
        return covariances, ~known

    def _products(self, whitened: Float[Tensor, "n i"]) -> Float[Tensor, "n pairs"]:
        """``bᵀ C_kl b`` of all pairs of outputs."""
        found: list[Tensor] = []
        for part in whitened.split(TOGETHER):
            total = part.new_zeros(len(part), len(self.blocks[0]))
            for number, block in enumerate(self.blocks):
                start = number * RUN
                products = part[:, start : start + RUN, None] * part[:, None, start:]
                total.addmm_(products.flatten(1), block.mT)
            found.append(total)
        return torch.cat(found)


def quadratic_forms(
    covariance: Float[Tensor, "d d"], places: Int[Tensor, "c i"], like: Tensor
) -> QuadraticForms | None:
    """The forms of a head; ``None`` where the rest is singular to rounding, as of one output.

    Args:
        covariance: Σ, float64.
        places: Place among the weights of that of output k and input i.
        like: Of the type of the outputs, float32 at least.
    """
    c, i = places.shape
    order = places.flatten()
    by_output = covariance[order[:, None], order].view(c, i, c, i)
    shared = by_output.mean((0, 2))
    whitening = cholesky_or_none(by_output.diagonal(dim1=0, dim2=2).mean(-1) - shared)
    if whitening is None:
        return None
    one, other = torch.triu_indices(c, c, device=order.device)
    of_pair = torch.empty(c, c, dtype=torch.long, device=order.device)
    of_pair[one, other] = torch.arange(len(one), device=order.device)
    of_pair[other, one] = of_pair[one, other]
    identity = torch.eye(i, dtype=whitening.dtype, device=whitening.device)
    inverse = torch.linalg.solve_triangular(whitening, identity, upper=False)
    pairs = inverse @ (by_output.transpose(1, 2)[one, other] - shared) @ inverse.mT
    blocks: list[Tensor] = []
    for start in range(0, i, RUN):
        end = min(start + RUN, i)
        block = pairs[:, start:end, start:].clone()
        block[:, :, end - start :] += pairs[:, end:, start:end].mT
        blocks.append(block.flatten(1).to(like))
    sizes = pairs[of_pair.diagonal()].diagonal(dim1=1, dim2=2).abs().to(like)
    return QuadraticForms(shared, whitening, tuple(blocks), sizes, covariance.diagonal()[places], of_pair)
