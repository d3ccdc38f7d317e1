"""Functional variance: J Λ⁻¹ Jᵀ for a batch, layer by layer, from factors; J is explicit only where Λ has no layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.curvature.sums import Held
from lapwing.ground.data.inputs import Inputs, chunks, count
from lapwing.ground.progress import Bar
from lapwing.jacobian.forward_pass import Pass, Workspace
from lapwing.jacobian.layers.factors import Factor, Outer, Rows, jacobian_rows, separated
from lapwing.jacobian.layers.lookup import Lookup
from lapwing.jacobian.model import Model
from lapwing.likelihoods.base import at_places, identity_cotangents
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, Kronecker, LowRank, Structured

BUDGET = 2**25
"""Bytes the layer factors of one chunk of inputs may take (32 MiB): a prediction fits beside the user's own work."""

CHEAPER = "A posterior of weights=LastLayer() or structure=Sampled(16) predicts in a few passes"
"""What to try where outputs are many, each pulled back by itself."""


@final
@dataclass(frozen=True, eq=False)
class Propagation:
    """Carries a Gaussian over the weights to the outputs: mean f(x), covariance J Λ⁻¹ Jᵀ (Immer et al. 2021, eq. 7).

    Several precisions of one curvature, with other hyper-parameters, share all of the work but the last contraction;
    where they do not share their eigenvectors, also but the rotation.

    Args:
        model: The network and its likelihood.
        precisions: Posterior precisions Λ, one or several.
    """

    model: Model
    precisions: tuple[Held, ...]

    def moments(
        self, inputs: Inputs, places: Int[Tensor, " p"] | None = None
    ) -> tuple[Float[Tensor, "n *event c"], list[Float[Tensor, "n *event c c"]]]:
        """Mean, and for each precision the covariance, of the outputs of each example and event position.

        Args:
            inputs: n examples.
            places: Event positions, counted over all axes, which become one; ``None`` for all of them as they are.

        Cost:
            One forward pass and c backward passes through the activations, times the positions of an event; the
            contractions of the structure; memory ``BUDGET`` beyond the result.
        """
        found: list[list[Tensor]] = []
        room: Workspace = {}
        cheaper = "" if self.model.survey.head else CHEAPER
        with Bar("covariances of outputs", unit="positions", cheaper=cheaper) as bar:
            for part in self.passes(inputs):
                f = at_places(part.outputs, places)
                bar.total = count(inputs) * f[0, ..., 0].numel()
                if self.model.survey.head:
                    blocks = self._of_head(part.head, places)
                    bar.update(f[..., 0].numel())
                else:
                    blocks = self._of_outputs(part, places, room, bar)
                found.append([f, *(block.to(f).view(*f.shape, f.shape[-1]) for block in blocks)])
        mean, *covariances = (torch.cat(column) for column in zip(*found, strict=True))
        return mean, covariances

    def _of_outputs(
        self, part: Pass, places: Int[Tensor, " p"] | None, room: Workspace, bar: Bar
    ) -> list[Float[Tensor, "n t c c"]]:
        """``J Λ⁻¹ Jᵀ`` at each position, whose outputs are pulled back one after the other."""
        each: list[list[Tensor]] = []
        for cotangents in identity_cotangents(part.outputs, places):
            each.append(self.covariances(self.factors(part, cotangents, room)))
            bar.update(len(part.outputs))
        return [torch.stack(blocks, dim=1) for blocks in zip(*each, strict=True)]

    def _of_head(self, head: Outer, places: Int[Tensor, " p"] | None) -> list[Float[Tensor, "m c c"]]:
        """The same of a head, whose positions are examples of their own and whose gradient is the identity."""
        alone, c = head.by_position(places), head.g.shape[3]
        size = max(
            1, BUDGET // (self.precisions[0].operator.dtype.itemsize * c * (c * len(self.precisions) + self.extra))
        )
        one, each = torch.eye(c).to(head.a)[None, :, None, :, None], []
        for start in range(0, len(alone.a), size):
            part = alone.taken(slice(start, start + size))
            each.append(self.covariances([self._precise(replace(part, g=one.expand(len(part.a), -1, -1, -1, -1)))]))
        return [torch.cat(blocks) for blocks in zip(*each, strict=True)]

    def covariances(self, factors: list[Factor]) -> list[Float[Tensor, "n k k"]]:
        """``J Λ⁻¹ Jᵀ`` of each example of a chunk, for each precision."""
        first = self.precisions[0].operator
        if self.by_layers:
            columns = zip(*(self.blocks(factors, held) for held in self.precisions), strict=True)
            layers = (self._propagated([block for _, block in pairs], pairs[0][0]) for pairs in columns)
            return list(reduce(torch.add, layers))
        rows = jacobian_rows(self.model.network, factors)
        operators = [held.operator for held in self.precisions]
        if len(operators) > 1 and isinstance(first, Dense):
            return list(self._propagated(operators, Rows(None, None, rows)))
        if len(operators) > 1 and isinstance(first, LowRank) and (multiples := multiples_of(first, operators)):
            return list(low_rank(rows, first, multiples))
        roots = [whitened_rows(rows, operator) for operator in operators]
        return [root @ root.mT for root in roots]

    def _propagated(self, blocks: Sequence[Structured], factor: Factor) -> Float[Tensor, "m n k k"]:
        """``J Λ⁻¹ Jᵀ`` of one layer for each of its precision blocks, whose variances every chunk shares."""
        first, key = blocks[0], (factor.names, type(factor))
        if key not in self._variances:
            self._variances[key] = torch.stack([variance_of(block, factor) for block in blocks])
        variances = self._variances[key]
        shared = all(same_basis(block, first) for block in blocks)
        turned = in_basis(factor, first) if isinstance(first, Kronecker) else None  # all examples in one product

        def few(part: Factor) -> Float[Tensor, "m few k k"]:
            if shared:
                return covariances(in_basis(part, first) if turned is None else part, variances)
            each = zip(blocks, variances, strict=True)
            return torch.stack([in_basis(part, block).covariance(variance) for block, variance in each])

        factor = factor if turned is None else turned
        n, k = factor.g.shape[:2]
        rows = isinstance(factor, Outer) and factor.positions > 1
        size = max(1, NUMBERS // (k * variances.shape[1])) if rows else n
        return torch.cat([few(factor.taken(slice(start, start + size))) for start in range(0, n, size)], dim=1)

    @cached_property
    def _variances(self) -> dict[tuple[tuple[str, ...], type], Float[Tensor, "m d"]]:
        """Variances of each layer's weights, see ``variance_of``, by the layer's names and the kind of its factor."""
        return {}

    def factors(self, part: Pass, cotangents: Float[Tensor, "k n ..."], room: Workspace | None = None) -> list[Factor]:
        """The factors of a chunk; in float64 where the precision is and has no layers, whose bases are cast."""
        return [self._precise(factor) for factor in part.factors(cotangents, room)]

    def _precise(self, factor: Factor) -> Factor:
        operator = self.precisions[0].operator
        wide = not isinstance(operator, BlockDiagonal) and operator.dtype != self.model.network.like.dtype
        return factor.double() if wide else factor

    def blocks(self, factors: list[Factor], held: Held) -> Iterator[tuple[Factor, Structured]]:
        """Each factor with its own block of the precision; a bias with a block of its own apart from its weight."""
        if isinstance(held.operator, BlockDiagonal):
            blocks = dict(zip(held.partition, held.operator.blocks, strict=True))
            for factor in factors:
                for part in (factor,) if factor.names in blocks else separated(factor):
                    yield part, blocks[part.names]
            return
        network = self.model.network
        precision = network.spread(held.operator.diagonal(), float("inf"))
        for factor in factors:
            yield factor, Diagonal(network.part(factor.names, precision))

    def passes(self, inputs: Inputs) -> Iterator[Pass]:
        """Forward passes of as many examples at a time as fit ``BUDGET``."""
        head = self.model.survey.head
        size = self.model.chunk(1 if head else self.model.event[-1], BUDGET, 0 if head else self.extra)
        for _, part in chunks(inputs, size):
            yield self.model.forward(part)

    @property
    def by_layers(self) -> bool:
        """Whether the precisions fall apart into those of layers."""
        return isinstance(self.precisions[0].operator, BlockDiagonal | Diagonal)

    @property
    def extra(self) -> int:
        """Numbers a cotangent takes beside the factors: without layers its row, and that whitened."""
        return 0 if self.by_layers else 2 * self.model.network.layout.size


def whitened_rows(rows: Float[Tensor, "n k d"], precision: Structured) -> Float[Tensor, "n k r"]:
    """``J W`` with ``W Wᵀ = Λ⁻¹``."""
    return (precision.inverse_root().T @ rows.flatten(0, 1).mT).mT.view(*rows.shape[:2], -1)


def in_basis(factor: Factor, block: Structured) -> Factor:
    """A layer's Jacobian in the eigenbasis of its precision block, where the covariance of its weights is diagonal."""
    if isinstance(block, Kronecker) and isinstance(factor, Lookup):
        g = block.bases[0].into(factor.g.mT).mT
        return replace(factor, g=g, shape=(factor.shape[0], g.shape[3]))
    if isinstance(block, Kronecker) and isinstance(factor, Outer):
        (left, right), (_, k, _, o, t) = block.bases, factor.g.shape
        if t == 1 or t <= k * o:  # what is smaller is turned: the positions, or the matrices they add up to
            return Outer(factor.names[0], None, left.into(factor.g), factor.turned(right))
        few = max(1, NUMBERS // (factor.width * t))
        matrices = [factor.taken(slice(start, start + few)).matrices for start in range(0, len(factor.g), few)]
        turned = right.into(left.into(torch.cat(matrices)).mT).mT
        return Rows(factor.weight, factor.bias, turned.flatten(2))
    if isinstance(block, Dense):
        rows = factor.rows()
        return Rows(factor.weight, factor.bias, block.eigenbasis.into(rows.mT).mT)
    return explicit(factor)


def multiples_of(first: LowRank, operators: Sequence[Structured]) -> list[tuple[float, float]] | None:
    """``(σ, τ)`` of each ``σ U Uᵀ + τ D`` beside the first, ``U Uᵀ + D``; ``None`` where one is no such sum."""
    found: list[tuple[float, float]] = []
    for operator in operators:
        if not isinstance(operator, LowRank) or operator.base is None or first.base is None:
            return None
        place = first.factor.abs().argmax()
        sigma = (operator.factor.flatten()[place] / first.factor.flatten()[place]).square().double()
        tau = operator.base.values.double() / first.base.values.double()
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
    whole = whitened.view(*rows.shape).double()
    sigma, tau = torch.tensor(multiples, dtype=torch.float64, device=rows.device).unbind(1)
    gain = sigma[:, None] / (tau[:, None] + sigma[:, None] * sizes)
    taken = contracted(seen.view(*rows.shape[:2], -1), gain)
    return (((whole @ whole.mT) - taken) / tau[:, None, None, None]).to(rows)


def same_basis(block: Structured, other: Structured) -> bool:
    """Whether two precisions of one layer have the same eigenvectors; a prior may differ inside a dense block."""
    return not isinstance(block, Dense) or (isinstance(other, Dense) and block.origin is other.origin)


def variance_of(block: Structured, factor: Factor) -> Float[Tensor, " d"]:
    """Posterior variances of a layer's weights in the eigenbasis of its precision block, ordered as ``in_basis``."""
    spectrum = block.basis_eigenvalues
    if isinstance(block, Kronecker) and isinstance(factor, Lookup):
        spectrum = spectrum.view(-1, factor.shape[0]).mT.flatten()
    return (1.0 / spectrum).to(factor.g)


def explicit(factor: Factor) -> Factor:
    """A layer whose weights are shared between positions as rows, made once for all that is asked of them."""
    if isinstance(factor, Outer) and factor.positions > 1:
        return Rows(factor.weight, factor.bias, factor.rows())
    return factor


NUMBERS = 2**19
"""Entries of rows, of their products, or of patches, made at a time: few enough to stay in a processor's cache."""


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
