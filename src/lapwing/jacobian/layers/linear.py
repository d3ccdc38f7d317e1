"""Linear maps: J = sum_t g_t a_tᵀ, gradients times inputs at each position t, never an n × c × d array.

``OuterProducts`` is what convolutions have in common with them: every map that is linear in its weight is one, and its
kind says what its inputs a are.
"""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, final

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from lapwing.ground.precision import DOUBLE, Precision
from lapwing.jacobian.layers.base import (
    NUMBERS,
    Call,
    Cost,
    Explicit,
    Factor,
    Layer,
    LayerKind,
    at_positions,
    by_example,
    contracted,
    examples_first,
)
from lapwing.jacobian.layers.moments import ColumnMoment, Moment, Sharing
from lapwing.jacobian.layers.shifted_spectra import ShiftedSpectra
from lapwing.linalg.operators.eigenbasis import Eigenbasis

T = TypeVar("T", bound="OuterProducts")

DIGITS = 1e5
"""Roundings that a variance by pairs of positions has, at least; a smaller one is made from rows, which lose half."""

MANY_POSITIONS = 16
"""Positions from which a matrix product of one example alone is as fast as that of many."""

STREAMED = 16
"""Multiplications that take the time of writing an entry of an explicit row and of reading it again."""


@dataclass(frozen=True, eq=False)
class OuterProducts(LayerKind):
    """A linear map with its bias: weight gradient ``sum_t g_t a_tᵀ``, bias gradient ``sum_t g_t``.

    In matrices ``[p, o, i]`` of its weights the bias is the last column, and 1 the last input.

    Args:
        g: Gradients at the layer's output, o to a group, ``[n, k, p, o, t]``.
        a: What the layer's inputs are made of.
    """

    affine = True

    a: Float[Tensor, "n *inputs"]

    @property
    def positions(self) -> int:
        """Positions t that share the weight."""
        return self.g.shape[-1]

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """Inputs i of a group, without the 1 of the bias."""

    @abc.abstractmethod
    def inputs(self, ones: int = 0) -> Float[Tensor, "n p i t"]:
        """The layer's inputs as columns, in p independent groups, followed by so many ones."""

    @property
    def ones(self) -> int:
        """Inputs that are one: of a bias that is uncertain."""
        return int(self.bias is not None)

    @cached_property
    def columns(self) -> Float[Tensor, "n p i t"]:
        """The layer's inputs as columns, with a last input of ones where the bias is uncertain."""
        if self.weight is None:
            n, _, p, _, t = self.g.shape
            return self.a.new_ones(()).expand(n, p, self.ones, t)
        return self.inputs(self.ones)

    def separated(self) -> tuple[OuterProducts, ...]:
        """See ``Factor``."""
        if self.weight is None or self.bias is None:
            return (self,)
        return replace(self, bias=None), replace(self, weight=None)

    # the Jacobian itself

    @property
    def matrices(self) -> Float[Tensor, "n k p o i"]:
        """The Jacobian of each example and cotangent, as a matrix with the bias in the last column."""
        n, k, p, o, t = self.g.shape
        left = self.g.transpose(1, 2).reshape(n * p, k * o, t)
        product = left @ self.columns.reshape(n * p, -1, t).mT
        return product.view(n, p, k, o, -1).transpose(1, 2)

    def rows(self) -> Float[Tensor, "n k d"]:
        """The explicit Jacobian."""
        return self.flat(self.matrices)

    def explicit(self) -> Factor:
        """See ``Factor``; at one position its questions are answered without rows."""
        return self if self.positions == 1 else Explicit(self.weight, self.bias, self.rows())

    def square_sum(self) -> Float[Tensor, " d"]:
        """``sum_t g_t a_tᵀ`` squared; at one position the squares of both."""
        if self.positions > 1:
            return self.flat(self.matrices.square_().sum((0, 1)))
        g = self.g.squeeze(-1).square().sum(1)
        a = self.columns.squeeze(-1).square()
        return self.flat(torch.einsum("npo,npi->poi", g, a))

    def flat(self, matrices: Float[Tensor, "... p o i"]) -> Float[Tensor, "... d"]:
        """Matrices with the bias in the last column, as flat weights in the order of ``names``."""
        if self.weight is None:
            return matrices.flatten(-3)
        if self.bias is None:
            return self.flat_weight(matrices)
        return torch.cat([self.flat_weight(matrices[..., :-1]), matrices[..., -1].flatten(-2)], dim=-1)

    def matrix(self, flat: Shaped[Tensor, " d"]) -> Shaped[Tensor, "p o i"]:
        """Flat weights in the order of ``names`` as matrices with the bias in the last column."""
        p, o = self.g.shape[2:4]
        if self.weight is None:
            return flat.view(p, o, 1)
        if self.bias is None:
            return self.weight_matrix(flat)
        return torch.cat([self.weight_matrix(flat[: -p * o]), flat[-p * o :].view(p, o, 1)], dim=-1)

    def flat_weight(self, matrices: Float[Tensor, "... p o i"]) -> Float[Tensor, "... d"]:
        """Matrices as the entries of the weight in their order: here one row an output after the other."""
        return matrices.flatten(-3)

    def weight_matrix(self, flat: Shaped[Tensor, " d"]) -> Shaped[Tensor, "p o i"]:
        """The entries of the weight in their order as matrices."""
        p, o = self.g.shape[2:4]
        return flat.view(p, o, -1)

    # products

    def for_products(self) -> Factor:
        """Rows; or factors laid out as products need them, where there are fewer positions than cotangents."""
        if not self.factored(self.g.shape[1]):
            return Explicit(self.weight, self.bias, self.rows())
        inputs = self.inputs().mT.contiguous().mT
        return Linear(self.weight, self.bias, self.g.mT.contiguous().mT, inputs)

    def factored(self, cotangents: int) -> bool:
        """Whether a column costs fewer multiplications from factors than from rows, for so many cotangents."""
        p = self.g.shape[2]
        t = self.positions
        return p == 1 and self.weight is not None and t * (self.width + cotangents) < cotangents * self.width

    def cost(self, cotangents: int) -> Cost:
        """See ``Factor``."""
        k = cotangents
        _, _, p, o, t = self.g.shape
        i = self.width if self.weight is not None else 1
        if self.factored(k):
            return Cost(0, 0, t * o * (i + k), t * (i + k * o), o * t, self.multiplications)
        entries = k * p * o * (i + int(len(self.names) > 1))
        return Cost(entries * t, entries, 0, entries, p * o * t, self.multiplications)

    @property
    def multiplications(self) -> int:
        """Those of the layer's forward pass, of one example."""
        _, _, p, o, t = self.g.shape
        return p * o * (self.width if self.weight is not None else 1) * t

    # KFAC

    def gradient_moment(self, sharing: Sharing, precision: Precision = DOUBLE) -> Moment:
        """See ``Factor``."""
        if sharing == "reduce":
            return ColumnMoment(precision.operand(self.g).sum(-1, keepdim=True).flatten(0, 1))
        g = self.g if self.g.stride(0) >= self.g.stride(1) else self.g.transpose(0, 1)  # as it lies in memory
        return ColumnMoment(precision.operand(g.flatten(0, 1)))

    def input_moment(self, sharing: Sharing, precision: Precision = DOUBLE) -> Moment:
        """See ``Factor``; *reduce* averages the inputs over the positions."""
        columns = replace(self, a=precision.operand(self.a)).columns
        n = len(self.g)
        if sharing == "reduce":
            return ColumnMoment(columns.mean(-1, keepdim=True), n)
        return ColumnMoment(columns, n * self.positions)

    def rotated(self, left: Eigenbasis, right: Eigenbasis) -> Factor:
        """See ``Factor``; what is smaller is turned: the positions, or the matrices they add up to."""
        _, k, _, o, t = self.g.shape
        if t == 1 or t <= k * o:
            return Linear(self.names[0], None, turned(left, self.g), self.rotated_inputs(right))
        few = max(1, NUMBERS // (self.width * t))
        matrices = [self.taken(slice(start, start + few)).matrices for start in range(0, len(self.g), few)]
        half = turned(left, torch.cat(matrices))
        return Explicit(self.weight, self.bias, turned(right, half.mT).mT.flatten(2))

    def rotated_inputs(self, right: Eigenbasis) -> Float[Tensor, "n p w t"]:
        """The columns in the eigenbasis of A."""
        return turned(right, self.columns.unsqueeze(1)).squeeze(1)

    # covariances of outputs

    def covariance(self, variance: Float[Tensor, " d"]) -> Float[Tensor, "n k k"]:
        """``J diag(variance) Jᵀ``; at one position without rows."""
        if self.positions > 1:
            return self.covariances(variance[None])[0]
        scale = self.matrix(variance)
        g = self.g.squeeze(-1)
        a = self.columns.squeeze(-1)
        root = (g * torch.einsum("npi,poi->npo", a.square(), scale).sqrt().unsqueeze(1)).flatten(2)
        return root @ root.mT

    def covariances(self, variances: Float[Tensor, "m d"]) -> Float[Tensor, "m n k k"]:
        """See ``Factor``; of several positions by their pairs or by rows, whichever takes fewer multiplications."""
        if self.positions > 1:
            return self._of_positions(variances)
        if len(variances) == 1:
            return self.covariance(variances[0])[None]
        scale = self.weight_arrays(variances)
        spread = torch.einsum("npi,mpoi->nmpo", self.columns.squeeze(-1).square(), scale)
        return contracted(self.g.squeeze(-1).flatten(2), spread.flatten(2))

    def _of_positions(self, variances: Float[Tensor, "m d"]) -> Float[Tensor, "m n k k"]:
        """By pairs of positions or by rows, a few examples at a time, so that what is made stays in a cache."""
        _, k, p, o, t = self.g.shape
        scale = self.weight_arrays(variances)
        m, _, _, i = scale.shape
        if pairs_cost(m, k, o, i, t) >= rows_cost(m, k, o, i, t):
            return self._from_rows(scale)
        pairs = t * (t + 1) // 2
        found: list[Tensor] = []
        for piece in self._pieces(p * pairs * (i + m * o)):
            covariance, separate = piece.from_pairs(scale)
            lost = cancelled(covariance, separate)
            if lost.any():
                covariance[:, lost] = piece.taken(lost)._from_rows(scale)
            found.append(covariance)
        return torch.cat(found, dim=1)

    def _from_rows(self, scale: Float[Tensor, "m p o i"]) -> Float[Tensor, "m n k k"]:
        """From explicit rows, which are never those of many examples."""
        _, k, p, o, _ = self.g.shape
        found: list[Tensor] = []
        deviations = scale[0].sqrt()
        for piece in self._pieces(k * p * o * scale.shape[-1]):
            if len(scale) == 1:
                root = piece.matrices.mul_(deviations).flatten(2)
                found.append((root @ root.mT)[None])
            else:
                found.append(contracted(piece.matrices.flatten(2), scale.flatten(1)))
        return torch.cat(found, dim=1)

    def _pieces(self: T, numbers: int) -> Iterator[T]:
        """A few examples at a time, of each of which so many numbers are made."""
        size = max(1, NUMBERS // numbers)
        for start in range(0, len(self.g), size):
            yield self.taken(slice(start, start + size))

    def weight_arrays(self, variances: Float[Tensor, "m d"]) -> Float[Tensor, "m p o i"]:
        """Variances as the matrices of the weights; see ``matrix``."""
        return torch.stack([self.matrix(variance) for variance in variances])

    def from_pairs(self, scale: Float[Tensor, "m p o i"]) -> tuple[Float[Tensor, "m n k k"], Float[Tensor, "m n k"]]:
        """``J diag(v) Jᵀ`` without rows: ``sum_ts g_t ⊙ H_ts ⊙ g_s`` over outputs, ``H_ts = sum_i v_i a_ti a_si``.

        Args:
            scale: v, as the matrices of the weights.

        Returns:
            The covariances, and the variances if no position had to do with another, see ``cancelled``.
        """
        n, _, p, o, t = self.g.shape
        m = len(scale)
        one, other = torch.triu_indices(t, t, device=self.g.device)
        place = torch.empty(t, t, dtype=torch.long, device=self.g.device)
        place[one, other] = place[other, one] = torch.arange(len(one), device=self.g.device)
        a = self.columns.permute(1, 2, 0, 3)
        products = (a[..., one] * a[..., other]).flatten(2)
        weighed = scale.transpose(0, 1).flatten(1, 2) @ products
        h = weighed.view(p, m, o, n, -1).transpose(0, 1)
        g = self.g.permute(2, 3, 0, 1, 4)
        separate = torch.einsum("ponkt,mpont->mnk", g.square(), h[..., place.diagonal()])
        moved = g @ h[..., place]
        covariance = moved.permute(0, 3, 4, 1, 2, 5).flatten(3) @ self.g.flatten(2).mT
        return (covariance + covariance.mT) / 2, separate

    def covariances_under(self, spectra: ShiftedSpectra) -> Float[Tensor, "m n k k"]:
        """See ``Factor``; of few positions from their products with each other, see ``ShiftedSpectra``."""
        k = self.g.shape[1]
        if spectra.cost(k, self.positions) < spectra.cost_by_weights(k, self.positions):
            covariances, separate = spectra.covariances(self.g[:, :, 0], self.columns[:, 0])
            lost = cancelled(covariances, separate)
            if lost.any():
                covariances[:, lost] = self.taken(lost)._under_weights(spectra)
            return covariances
        return self._under_weights(spectra)

    def _under_weights(self, spectra: ShiftedSpectra) -> Float[Tensor, "m n k k"]:
        """From the variances of the weights under each prior, some at a time; of many priors from what they share."""
        g = self.g[:, :, 0]
        inputs = self.columns[:, 0]
        k = g.shape[1]
        if self.positions > 1 and spectra.by_segments(k):
            pieces = self._pieces(k * len(spectra.left) * len(spectra.right))
            return torch.cat([spectra.contracted(piece.matrices[:, :, 0]) for piece in pieces], 1)
        found = list[Tensor]()
        for place, variances in spectra.pieces():
            if self.positions > 1:
                found.append(contracted((g[:, :, place] @ inputs.mT[:, None]).flatten(2), variances.flatten(1)))
            else:
                spread = torch.einsum("ni,moi->nmo", inputs.squeeze(-1).square(), variances)
                found.append(contracted(g[:, :, place].squeeze(-1), spread))
        return torch.stack(found).sum(0)

    def gram(self, other: Factor, variance: Float[Tensor, " d"]) -> Float[Tensor, "m m2"]:
        """See ``Factor``; at one position with one variance ``v Σ_p ⟨a, a'⟩ ⟨g, g'⟩``, without rows."""
        constant = bool((variance == variance[0]).all())
        if not (constant and isinstance(other, OuterProducts) and self.positions == other.positions == 1):
            return super().gram(other, variance)
        inputs = torch.einsum("npi,mpi->pnm", self.columns.squeeze(-1), other.columns.squeeze(-1))
        gradients = torch.einsum("nkpo,mlpo->pnkml", self.g.squeeze(-1), other.g.squeeze(-1))
        gram = (gradients * inputs[:, :, None, :, None]).sum(0)
        return variance[0] * gram.flatten(0, 1).flatten(1)

    # the layer that makes the outputs

    def without_gradients(self: T) -> T:
        """Its inputs alone: of no cotangents."""
        return replace(self, g=self.g[:, :0])

    def by_position(self, places: Int[Tensor, " p"] | None = None) -> Linear:
        """Its inputs, those of each position, or of some, as an example of its own, and no gradients."""
        a = self.columns.squeeze(1).mT
        a = (a if places is None else a[:, places]).flatten(0, 1)[:, None, :, None]
        if self.weight is not None and self.bias is not None:
            a = a[:, :, :-1]
        return Linear(self.weight, self.bias, a.new_empty(a.shape[0], 0, 1, self.g.shape[3], 1), a)


def turned(basis: Eigenbasis, x: Float[Tensor, "n k p m t"]) -> Float[Tensor, "n k p w t"]:
    """Columns in an eigenbasis: its vectors are not copied for every example, nor the columns where it can be helped.

    One product for each group; or, of many positions that lie side by side, one for each example.
    """
    n, k, p, _, t = x.shape
    if p == 1 and t >= MANY_POSITIONS and x.stride(-1) == 1 and basis.vectors.ndim > 1:
        vectors = basis.vectors.view(1, *basis.vectors.shape[-2:])
        return replace(basis, vectors=vectors).into(x)
    columns = x.permute(2, 3, 0, 1, 4).flatten(2)
    single = p == 1 and basis.vectors.ndim == 2
    found = basis.into(columns[0])[None] if single else basis.into(columns)
    return found.unflatten(2, (n, k, t)).permute(2, 3, 0, 1, 4)


def cancelled(covariances: Float[Tensor, "m n k k"], separate: Float[Tensor, "m n k"]) -> Bool[Tensor, " n"]:
    """Examples of which positions all but cancel, as of two inputs that are nearly the same in ``f(x) - f(x')``.

    Args:
        covariances: Of outputs, summed over pairs of positions.
        separate: Variances from each position with itself alone, of which a sum over pairs is known to rounding.
    """
    least = DIGITS * torch.finfo(covariances.dtype).eps
    return (covariances.diagonal(dim1=-2, dim2=-1) < least * separate).any(-1).any(0)


def pairs_cost(variances: int, k: int, o: int, i: int, t: int) -> int:
    """Multiplications of a covariance of one example by pairs of t positions, of a layer of o outputs and i inputs."""
    pairs = t * (t + 1) // 2
    return pairs * i + variances * (pairs * o * i + o * k * t * (t + k))


def rows_cost(variances: int, k: int, o: int, i: int, t: int) -> int:
    """The same by explicit rows, which are made, and multiplied with each other; see ``contracted``."""
    if variances == 1 or variances < k:
        return o * i * (k * t + variances * (k * k + STREAMED * k))
    return o * i * (k * t + variances * k * (k + 1) + STREAMED * k)


@final
@dataclass(frozen=True, eq=False)
class Linear(OuterProducts):
    """``torch.nn.functional.linear``: its inputs are those of the layer.

    Args:
        a: The layer's inputs, in p independent groups of i, ``[n, p, i, t]``.
    """

    by_output = True

    @classmethod
    def signature(cls, func: Callable[..., Any]) -> inspect.Signature:
        """See ``LayerKind``; C++ hides it."""

        def linear(input: Any, weight: Any, bias: Any = None) -> None: ...

        return inspect.signature(linear)

    @classmethod
    def input_and_options(cls, func: Callable[..., Any], given: dict[str, Any]) -> tuple[Tensor, None]:
        """See ``LayerKind``."""
        return given["input"], None

    @classmethod
    def of(cls, layer: Layer, calls: list[Call], grads: list[Tensor], n: int) -> Linear:
        """See ``LayerKind``."""
        g = at_positions([by_example(part, layer.axis, n) for part in grads], 2)
        a = at_positions([examples_first(call.input, layer.axis, n, 1) for call in calls], 1)
        return cls(layer.weight, layer.bias, g.mT.unsqueeze(2), a.mT.unsqueeze(1))

    @property
    def width(self) -> int:
        """See ``OuterProducts``."""
        return self.a.shape[2]

    def inputs(self, ones: int = 0) -> Float[Tensor, "n p i t"]:
        """See ``OuterProducts``."""
        if not ones:
            return self.a
        n, p, _, t = self.a.shape
        return torch.cat([self.a, self.a.new_ones(()).expand(n, p, ones, t)], dim=2)

    def weight_arrays(self, variances: Float[Tensor, "m d"]) -> Float[Tensor, "m p o i"]:
        """See ``OuterProducts``; without a copy where there is a weight alone, as in an eigenbasis."""
        if len(self.names) > 1:
            return super().weight_arrays(variances)
        return variances.view(len(variances), *self.g.shape[2:4], -1)

    def push(self, block: Float[Tensor, "d c"]) -> Float[Tensor, "n k c"]:
        """``J V = sum_t g_tᵀ (V a_t)``, from what ``for_products`` made."""
        a = self.a[:, 0].mT
        g = self.g[:, :, 0].mT
        i = a.shape[-1]
        o = g.shape[-1]
        weight = block[: o * i].view(o, i, -1).mT.reshape(-1, i)
        moved = a.flatten(0, 1) @ weight.mT
        if self.bias is not None:
            moved += block[o * i :].flatten()
        return combine(g.flatten(2), moved.view(len(a), g.shape[2] * o, -1))

    def pull(self, block: Float[Tensor, "n k c"]) -> Float[Tensor, "d c"]:
        """``Jᵀ U``, from the same: the gradients combined first, then one product with the inputs."""
        a = self.a[:, 0].mT
        g = self.g[:, :, 0].mT
        i = a.shape[-1]
        o = g.shape[-1]
        width = block.shape[2]
        moved = combine(g.flatten(2).mT, block).reshape(-1, o * width)
        weight = (moved.mT @ a.flatten(0, 1)).view(o, width, i).mT.reshape(-1, width)
        return weight if self.bias is None else torch.cat([weight, moved.sum(0).view(o, width)])


def combine(left: Float[Tensor, "n a b"], right: Float[Tensor, "n b c"]) -> Float[Tensor, "n a c"]:
    """The matrix product of each example; many tiny ones with a single column are faster as one sum."""
    if right.shape[2] > 1:
        return left @ right
    return (left * right.mT).sum(2, keepdim=True)
