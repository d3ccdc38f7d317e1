"""Propagation of the weights' Gaussian to the outputs: J Λ⁻¹ Jᵀ for a batch, layer by layer, from factors.

The covariance of a layer's weights is diagonal in the eigenbasis of its block of the precision. So its factor is
rotated there, each kind of layer in its own way, and contracted with the variances; J is explicit only where Λ has no
layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import TypeVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.contractions import low_rank, multiples_of, of_outer_products, whitened_rows
from lapwing.curvature.quadratic_forms import QuadraticForms, quadratic_forms
from lapwing.ground.data.inputs import Inputs, chunks, count
from lapwing.ground.precision import wide
from lapwing.ground.progress import Bar
from lapwing.jacobian.forward_pass import Pass, Workspace
from lapwing.jacobian.layers.base import Explicit, Factor, jacobian_rows, row_products
from lapwing.jacobian.layers.linear import OuterProducts
from lapwing.jacobian.layers.shifted_spectra import ShiftedSpectra
from lapwing.jacobian.model import Model
from lapwing.likelihoods.base import at_places, identity_cotangents
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, Kronecker, LowRank, Structured
from lapwing.linalg.operators.eigenbasis import Eigenbasis

T = TypeVar("T", bound=Factor)

LARGE = 2**15
"""Weights of a layer from which its covariances under several priors are made without their variances."""

KEPT = 2**19
"""Weights of a layer up to which its variances under each of several priors are counted as kept."""

ROOTS = 2
"""Dense precisions, at most, that are factored each by itself: that which predicts, and that of what is known."""

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
        large: Weights of a layer from which its covariances under several priors are made without their variances,
            with an error of ``ShiftedSpectra``.
    """

    model: Model
    precisions: tuple[BlockedCurvature, ...]
    large: int = LARGE

    def moments(
        self, inputs: Inputs, places: Int[Tensor, " p"] | None = None, *, rounded: bool = True
    ) -> tuple[Float[Tensor, "n *event c"], list[Float[Tensor, "n *event c c"]]]:
        """Mean, and for each precision the covariance, of the outputs of each example and event position.

        Args:
            inputs: n examples.
            places: Event positions, counted over all axes, which become one; ``None`` for all of them as they are.
            rounded: Whether covariances are of the dtype of the outputs; else of that in which they were computed, for
                something as large to be subtracted.

        Cost:
            One forward pass and c backward passes through the activations, times the positions of an event; the
            contractions of the structure; memory ``Limits.prediction`` beyond the result.
        """
        found: list[list[Tensor]] = []
        room: Workspace = {}
        cheaper = "" if self.model.survey.head else CHEAPER
        with Bar("covariances of outputs", unit="positions", cheaper=cheaper) as bar:
            for part in self.passes(inputs):
                f = at_places(part.outputs, places)
                bar.total = count(inputs) * f[0, ..., 0].numel()
                if self.model.survey.head:
                    blocks = self._of_head(part.head, places, rounded)
                    bar.update(f[..., 0].numel())
                else:
                    blocks = self._of_outputs(part, places, room, bar)
                covariances = [(block.to(f) if rounded else block).view(*f.shape, f.shape[-1]) for block in blocks]
                found.append([f, *covariances])
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

    def _of_head(
        self, head: OuterProducts, places: Int[Tensor, " p"] | None, rounded: bool
    ) -> list[Float[Tensor, "m c c"]]:
        """The same of a head, whose positions are examples of their own and whose gradient is the identity."""
        alone = head.by_position(places)
        c = head.g.shape[3]
        written = self._writes_inverses(c * len(alone.a))
        itemsize = self.precisions[0].operator.dtype.itemsize
        beside = self.model.network.size if written else c * max(0, self.extra)
        numbers = c * c * len(self.precisions) + beside
        size = max(1, self.model.limits.prediction // (itemsize * numbers))
        each: list[list[Tensor]] = []
        for start in range(0, len(alone.a), size):
            part = alone.taken(slice(start, start + size))
            if written:
                each.append([self._of_dense(held, part, rounded) for held in self.precisions])
            else:
                one = torch.eye(c).to(head.a)[None, :, None, :, None].expand(len(part.a), -1, -1, -1, -1)
                each.append(self.covariances([self._precise(replace(part, g=one))]))
        return [torch.cat(blocks) for blocks in zip(*each, strict=True)]

    def _writes_inverses(self, rows: int) -> bool:
        """Whether inverses of dense precisions take no more than solves with so many rows of J, and are not large.

        Of more than ``ROOTS`` precisions one eigendecomposition takes less.
        """
        d = self.model.network.size
        if len(self.precisions) > ROOTS or 3 * rows < 2 * d:
            return False
        operators = [held.operator for held in self.precisions]
        if d * d * operators[0].dtype.itemsize > self.model.limits.prediction:
            return False
        return all(isinstance(operator, Dense) and operator.has_cholesky for operator in operators)

    def _of_dense(self, held: BlockedCurvature, head: OuterProducts, rounded: bool) -> Float[Tensor, "m c c"]:
        """Under a dense precision that is not singular: by quadratic forms where outputs are less exact than it is."""
        operator = held.operator
        assert isinstance(operator, Dense)
        inputs = head.columns[:, 0, :, 0]
        if not rounded or inputs.dtype == operator.dtype or head.g.shape[3] == 1:
            return self._by_rows(operator, head, inputs)
        forms = held.shared_forms.of(operator, make=lambda: self._forms(operator, head))
        if forms is None:
            return self._by_rows(operator, head, inputs)
        covariances, lost = forms.covariances(inputs)
        if lost.any():
            covariances[lost] = self._by_rows(operator, head, inputs[lost])
        return covariances

    def _forms(self, operator: Dense, head: OuterProducts) -> QuadraticForms | None:
        """What the inverse of a precision makes of the inputs of a head."""
        like = head.a.new_empty(0, dtype=torch.promote_types(head.a.dtype, torch.float32))
        return quadratic_forms(operator.written_inverse(), self._places(operator, head), like)

    def _by_rows(self, operator: Dense, head: OuterProducts, inputs: Float[Tensor, "n i"]) -> Float[Tensor, "n c c"]:
        """``J Λ⁻¹ Jᵀ`` in the type of the precision; see ``of_outer_products``."""
        exact = inputs if inputs.dtype == operator.dtype else wide(inputs)
        return of_outer_products(exact, self._places(operator, head), operator.written_inverse_root)

    def _places(self, operator: Dense, head: OuterProducts) -> Int[Tensor, "c i"]:
        """Places of a head's weights among all, a row an output, where the precision is."""
        network = self.model.network
        order = torch.arange(network.size, device=head.a.device)
        return head.matrix(network.part(head.names, order))[0].to(operator.device)

    def covariances(self, factors: list[Factor]) -> list[Float[Tensor, "n k k"]]:
        """``J Λ⁻¹ Jᵀ`` of each example of a chunk, for each precision."""
        if self.by_layers:
            layers = [self._layers[part.names].covariances(part) for part in self.parts(factors)]
            return list(reduce(torch.add, layers))
        rows = jacobian_rows(self.model.network, factors)
        operators = [held.operator for held in self.precisions]
        first = operators[0]
        if len(operators) > 2 and isinstance(first, Dense):  # of two a root each takes less than the eigenbasis
            return list(LayerPrecision(tuple(operators), rows).covariances(Explicit(None, None, rows)))
        if len(operators) > 1 and isinstance(first, LowRank) and (multiples := multiples_of(first, operators)):
            return list(low_rank(rows, first, multiples))
        roots = [whitened_rows(rows, operator) for operator in operators]
        return [root @ root.mT for root in roots]

    def whitened(self, factors: list[Factor]) -> list[Factor]:
        """What ``between`` is given of a chunk: its parts by layers, or without layers ``J W`` with ``W Wᵀ = Λ⁻¹``."""
        if self.by_layers:
            return self.parts(factors)
        rows = jacobian_rows(self.model.network, factors)
        return [Explicit(None, None, whitened_rows(rows, self.precisions[0].operator))]

    def between(self, left: list[Factor], right: list[Factor]) -> Float[Tensor, "m m2"]:
        """``J Λ⁻¹ Jᵀ`` between all rows of two chunks, under the first precision; see ``whitened``."""
        pairs = zip(left, right, strict=True)
        if self.by_layers:
            return reduce(torch.add, (self._layers[a.names].between(a, b) for a, b in pairs))
        return reduce(torch.add, (a.rows().flatten(0, 1) @ b.rows().flatten(0, 1).mT for a, b in pairs))

    def parts(self, factors: list[Factor]) -> list[Factor]:
        """Each factor that has a block of its own; of others the weight and the bias apart."""
        found: list[Factor] = []
        for factor in factors:
            found += [factor] if factor.names in self._layers else factor.separated()
        return found

    @cached_property
    def _layers(self) -> dict[tuple[str, ...], LayerPrecision]:
        """Each layer's block of every precision, by the names of its parameters."""
        network = self.model.network
        like = self._precise(Explicit(None, None, network.like.new_empty(0, 0, 0))).g
        if isinstance(self.precisions[0].operator, BlockDiagonal):
            columns = [dict(zip(held.partition, blocks_of(held), strict=True)) for held in self.precisions]
            blocks_by_layer = {names: tuple(each[names] for each in columns) for names in columns[0]}
            return {names: LayerPrecision(blocks, like, self.large) for names, blocks in blocks_by_layer.items()}
        diagonals = [network.spread(held.operator.diagonal(), float("inf")) for held in self.precisions]
        found: dict[tuple[str, ...], LayerPrecision] = {}
        survey = self.model.survey
        owners = [layer.names for layer in survey.layers]
        owners += [(name,) for name in survey.without_factors]
        for names in owners:
            blocks = tuple(Diagonal(network.part(names, diagonal)) for diagonal in diagonals)
            found[names] = LayerPrecision(blocks, like)
        return found

    def factors(self, part: Pass, cotangents: Float[Tensor, "k n ..."], room: Workspace | None = None) -> list[Factor]:
        """The factors of a chunk; in float64 where the precision is and has no layers, whose bases are cast."""
        return [self._precise(factor) for factor in part.factors(cotangents, room)]

    def _precise(self, factor: T) -> T:
        operator = self.precisions[0].operator
        exact = not isinstance(operator, BlockDiagonal) and operator.dtype != self.model.network.like.dtype
        return factor.widened() if exact else factor

    def passes(self, inputs: Inputs) -> Iterator[Pass]:
        """Forward passes of as many examples at a time as fit ``Limits.prediction``."""
        head = self.model.survey.head
        cotangents = 1 if head else self.model.event[-1]
        size = self.model.chunk(cotangents, 0 if head else self.extra, budget=self.model.limits.prediction)
        for _, part in chunks(inputs, size):
            yield self.model.forward(part)

    @property
    def by_layers(self) -> bool:
        """Whether the precisions fall apart into those of layers."""
        return isinstance(self.precisions[0].operator, BlockDiagonal | Diagonal)

    @property
    def extra(self) -> int:
        """Numbers a cotangent takes beside the factors: without layers its row, and that whitened.

        By layers fewer than elsewhere: what is written down is that of a few examples at a time.
        """
        return -self.model.survey.written if self.by_layers else 2 * self.model.network.layout.size


@final
@dataclass(frozen=True, eq=False)
class LayerPrecision:
    """One layer's block of each of several precisions.

    Args:
        blocks: The blocks.
        like: Of the type of what is computed.
        large: As for ``Propagation``.
    """

    blocks: tuple[Structured, ...]
    like: Tensor
    large: int = LARGE

    @cached_property
    def variances(self) -> Float[Tensor, "m w"]:
        """Of the weights in the eigenbasis of each block, in the order of its eigenvectors."""
        return torch.stack([(1.0 / block.basis_eigenvalues).to(self.like) for block in self.blocks])

    @cached_property
    def spectra(self) -> ShiftedSpectra | None:
        """The eigenvalues of a large Kronecker product under several priors; ``None`` of other blocks."""
        if len(self.blocks) == 1 or self.blocks[0].shape[0] < self.large:
            return None
        return shifted_spectra(self.blocks, self.like)

    def covariances(self, factor: Factor) -> Float[Tensor, "m n k k"]:
        """``J Λ⁻¹ Jᵀ`` of the layer, for each precision."""
        first = self.blocks[0]
        if self.spectra is not None:
            return self._rotated(factor).covariances_under(self.spectra)
        if all(same_basis(block, first) for block in self.blocks):
            return self._rotated(factor).covariances(self._in_order(factor))
        each: list[Tensor] = []
        for block, variance in zip(self.blocks, self.variances, strict=True):
            each.append(rotated_by(block, factor).covariance(variance))
        return torch.stack(each)

    def between(self, left: Factor, right: Factor) -> Float[Tensor, "m m2"]:
        """``J Λ⁻¹ Jᵀ`` of the layer between two chunks, for the first precision."""
        variance = self._in_order(left)[0]
        return row_products(*left.narrowed(right, variance), rotate=self._rotated)

    def _rotated(self, factor: Factor) -> Factor:
        """The factor in the eigenbasis of the first block."""
        if isinstance(self.blocks[0], Kronecker):
            return factor.rotated(*self._bases)
        return rotated_by(self.blocks[0], factor)

    @cached_property
    def _bases(self) -> tuple[Eigenbasis, Eigenbasis]:
        """Those of the Kronecker product that the first block is, in the type of what is computed: cast once."""
        assert isinstance(self.blocks[0], Kronecker)
        left, right = self.blocks[0].bases
        return cast_to(left, self.like), cast_to(right, self.like)

    def _in_order(self, factor: Factor) -> Float[Tensor, "m w"]:
        """The variances in the order of the columns of the rotated factor."""
        return factor.rotated_order(self.variances) if isinstance(self.blocks[0], Kronecker) else self.variances


def rotated_by(block: Structured, factor: Factor) -> Factor:
    """A layer's Jacobian in the eigenbasis of its precision block, where the covariance of its weights is diagonal."""
    if isinstance(block, Dense):
        return Explicit(factor.weight, factor.bias, block.eigenbasis.into(factor.rows().mT).mT)
    return factor


def cast_to(basis: Eigenbasis, like: Tensor) -> Eigenbasis:
    """A basis whose vectors have the type of some tensor."""
    return replace(basis, vectors=basis.vectors.to(like))


def keeps_variances(block: Structured) -> bool:
    """Whether a block's variances under each of several priors are kept while examples are looked at."""
    if not isinstance(block, Kronecker) or block.corrected is not None:
        return True
    return block.array_shape[0] > 1 or block.shape[0] < KEPT


def shifted_spectra(blocks: Sequence[Structured], like: Tensor) -> ShiftedSpectra | None:
    """The eigenvalues of copies of one Kronecker product without groups; ``None`` of others, also of corrected ones."""
    copies = [block for block in blocks if isinstance(block, Kronecker)]
    if len(copies) < len(blocks) or copies[0].array_shape[0] > 1 or copies[0].corrected is not None:
        return None
    left, right = copies[0].bases
    if not all(copy.bases == (left, right) for copy in copies):
        return None
    left_values = left.basis_eigenvalues.flatten()
    scales = left_values.new_tensor([float(copy.scale) for copy in copies])
    shifts = left_values.new_tensor([float(copy.shift) for copy in copies])
    return ShiftedSpectra(left_values, right.basis_eigenvalues.flatten(), scales, shifts, like)


def same_basis(block: Structured, other: Structured) -> bool:
    """Whether two precisions of one layer have the same eigenvectors; a prior may differ inside a dense block."""
    return not isinstance(block, Dense) or (isinstance(other, Dense) and block.origin is other.origin)


def blocks_of(held: BlockedCurvature) -> tuple[Structured, ...]:
    """The blocks of a precision that has some."""
    assert isinstance(held.operator, BlockDiagonal)
    return held.operator.blocks
