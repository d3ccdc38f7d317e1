"""Functional variance: J Λ⁻¹ Jᵀ for a batch, layer by layer, from factors; J is explicit only where Λ has no layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.dense import jacobian_rows
from lapwing.curvature.factors import Factor, Lookup, Outer, explicit_covariance, outer, separable_covariance
from lapwing.curvature.ggn import identity_cotangents
from lapwing.curvature.kfac import separated
from lapwing.curvature.layers import Pass, Survey
from lapwing.curvature.network import Network
from lapwing.curvature.sums import Held, raw
from lapwing.data import chunks, count
from lapwing.likelihoods import Likelihood
from lapwing.linalg import BlockDiagonal, Diagonal, Kronecker, Structured
from lapwing.types import Inputs

BUDGET = 2**25
"""Bytes the layer factors of one chunk of inputs may take (32 MiB): a prediction fits beside the user's own work."""


@dataclass(frozen=True, eq=False)
class Propagation:
    """Carries a Gaussian over the weights to the outputs: mean f(x), covariance J Λ⁻¹ Jᵀ (Immer et al. 2021, eq. 7).

    Args:
        network: The network.
        survey: What is known of its layers.
        likelihood: Says where the outputs' axes are.
        held: The posterior precision Λ.
    """

    network: Network
    survey: Survey
    likelihood: Likelihood
    held: Held

    def moments(self, inputs: Inputs) -> tuple[Float[Tensor, "n *event c"], Float[Tensor, "n *event c c"]]:
        """Mean and covariance of the outputs of each example and event position.

        Args:
            inputs: n examples.

        Cost:
            One forward pass and c backward passes through the activations, times the positions of an event; the
            contractions of the structure; memory ``BUDGET`` beyond the result.
        """
        means, covariances = [], []
        for part in self._passes(inputs):
            f = self.likelihood.canonical(part.outputs)
            positions = [
                self.covariance(list(part.factors(raw(self.likelihood, cotangents))))
                for cotangents in identity_cotangents(f)
            ]
            means.append(f)
            covariances.append(torch.stack(positions, dim=1).view(*f.shape, f.shape[-1]))
        return torch.cat(means), torch.cat(covariances)

    def joint(self, inputs: Inputs) -> tuple[Float[Tensor, "n *event c"], Float[Tensor, "m m"]]:
        """Mean of each example, and the covariance of all m outputs of all examples at once.

        Cost:
            As ``moments``; memory m times d numbers for the largest layer, and m².
        """
        means: list[Tensor] = []
        roots: list[Tensor] = []
        for part in self._passes(inputs):
            f = self.likelihood.canonical(part.outputs)
            positions = []
            for cotangents in identity_cotangents(f):
                factors = list(part.factors(raw(self.likelihood, cotangents)))
                positions.append(self.whitened(factors))
            means.append(f)
            roots.append(torch.stack(positions, dim=1).flatten(0, 2))
        root = torch.cat(roots)
        return torch.cat(means), root @ root.mT

    def covariance(self, factors: list[Factor]) -> Float[Tensor, "n k k"]:
        """``J Λ⁻¹ Jᵀ`` of each example of a chunk."""
        if isinstance(self.held.operator, BlockDiagonal):
            return sum_of([block_covariance(factor, self._blocks[factor.names]) for factor in self._split(factors)])
        if isinstance(self.held.operator, Diagonal):
            variance = self._variances
            return sum_of([f.covariance(torch.cat([variance[name] for name in f.names])) for f in factors])
        root = self.whitened(factors)
        return root @ root.mT

    def whitened(self, factors: list[Factor]) -> Float[Tensor, "n k r"]:
        """``J W`` with ``W Wᵀ = Λ⁻¹``, explicit."""
        if isinstance(self.held.operator, BlockDiagonal):
            blocks = [whitened_block(factor, self._blocks[factor.names]) for factor in self._split(factors)]
            return torch.cat(blocks, dim=-1)
        rows = jacobian_rows(self.network, factors)
        return (self.held.operator.inverse_root().T @ rows.flatten(0, 1).mT).mT.view(*rows.shape[:2], -1)

    @cached_property
    def _blocks(self) -> dict[tuple[str, ...], Structured]:
        operator = self.held.operator
        blocks = operator.blocks if isinstance(operator, BlockDiagonal) else ()
        return dict(zip(self.held.partition, blocks, strict=True))

    @cached_property
    def _variances(self) -> dict[str, Tensor]:
        """Marginal variances by parameter; 0 where a weight is not uncertain."""
        variance = 1.0 / self.held.operator.diagonal()
        if self.network.index is not None:
            variance = variance.new_zeros(self.network.layout.size).index_copy(0, self.network.index, variance)
        return {name: variance[place] for name, place in self.network.layout.slices.items()}

    def _split(self, factors: list[Factor]) -> Iterator[Factor]:
        for factor in factors:
            yield from (factor,) if factor.names in self._blocks else separated(factor)

    def _passes(self, inputs: Inputs) -> Iterator[Pass]:
        outputs = self.survey.output.numel()
        extra = 0 if isinstance(self.held.operator, BlockDiagonal | Diagonal) else 2 * self.network.layout.size
        size = self.survey.chunk(outputs, self.network.like.element_size(), BUDGET, extra)
        for _, part in chunks(inputs, min(size, count(inputs))):
            yield Pass(self.network, self.survey, part)


def sum_of(parts: list[Tensor]) -> Tensor:
    """The sum of tensors of one shape."""
    return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]


def block_covariance(factor: Factor, block: Structured) -> Float[Tensor, "n k k"]:
    """``J Λ⁻¹ Jᵀ`` of one layer whose precision block is at hand."""
    if isinstance(block, Diagonal):
        return factor.covariance(1.0 / block.values)
    if isinstance(block, Kronecker) and isinstance(factor, Lookup):
        rotated = replace(factor, g=factor.g @ block.left_vectors)
        return rotated.covariance(scale_of(block, factor.g)[0].mT.flatten())
    if isinstance(block, Kronecker) and isinstance(factor, Outer):
        scale = scale_of(block, factor.g)
        if factor.positions == 1:
            return separable_covariance(*rotated_factors(factor, block), scale)
        return explicit_covariance(rotated_matrices(factor, block), scale)
    root = whitened_block(factor, block)
    return root @ root.mT


def whitened_block(factor: Factor, block: Structured) -> Float[Tensor, "n k r"]:
    """``J W`` of one layer, ``W Wᵀ`` the inverse of its precision block."""
    if isinstance(block, Kronecker) and isinstance(factor, Outer):
        return (rotated_matrices(factor, block) * scale_of(block, factor.g).sqrt()).flatten(2)
    if isinstance(block, Kronecker) and isinstance(factor, Lookup):
        rotated = replace(factor, g=factor.g @ block.left_vectors)
        return rotated.rows() * scale_of(block, factor.g)[0].mT.flatten().sqrt()
    rows = factor.rows()
    return (block.inverse_root().T @ rows.flatten(0, 1).mT).mT.view(*rows.shape[:2], -1)


def scale_of(block: Kronecker, like: Tensor) -> Float[Tensor, "p o i"]:
    """Posterior variances in the eigenbasis of a Kronecker block."""
    return (1.0 / block.spectrum).to(like)


def rotated_factors(factor: Outer, block: Kronecker) -> tuple[Tensor, Tensor]:
    """Gradients and inputs of a layer in the eigenbasis of its block."""
    return block.left_vectors.mT @ factor.g, block.right_vectors.mT @ factor.columns


def rotated_matrices(factor: Outer, block: Kronecker) -> Float[Tensor, "n k p o i"]:
    """``Q_Gᵀ (sum_t g_t a_tᵀ) Q_A``, rotating what is smaller: the positions, or the matrix they add up to."""
    _, k, _, o, t = factor.g.shape
    g, a = factor.g, factor.columns
    if t <= k * o:
        return outer(block.left_vectors.mT @ g, block.right_vectors.mT @ a)
    return block.left_vectors.mT @ outer(g, a) @ block.right_vectors
