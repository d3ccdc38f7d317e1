"""What one layer contributes to the Jacobian, and what every kind of layer answers about it.

n examples, k cotangents (outputs, or columns of a root), t positions that share the weight, C columns.
"""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, TypeVar, final

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.autograd.graph import GradientEdge

from lapwing.ground.precision import DOUBLE, Precision, wide, wide_like
from lapwing.jacobian.layers.moments import Moment, Sharing
from lapwing.jacobian.layers.shifted_spectra import ShiftedSpectra
from lapwing.jacobian.network.network import Network
from lapwing.linalg.operators.eigenbasis import Eigenbasis

T = TypeVar("T", bound="Factor")

NUMBERS = 2**19
"""Entries of rows, of their products, or of patches, made at a time: few enough to stay in a processor's cache."""

WIDTH = 512
"""Columns of them, at least: enough for a matrix product."""

ROWS = 2**24
"""Bytes the explicit rows of some examples may take beside those of others (16 MiB)."""


@final
class Cost(NamedTuple):
    """What a layer takes for one example, in multiplications and numbers.

    Args:
        building: To make explicit rows.
        rows: Entries of explicit rows.
        factors: A column by factors.
        held: Numbers that are kept.
        outputs: Numbers at the outputs of the layer.
        forward: Multiplications of a forward pass.
    """

    building: int
    rows: int
    factors: int
    held: int
    outputs: int
    forward: int


@final
class Sizes(NamedTuple):
    """Numbers that one use of a layer makes of one example.

    Args:
        outputs: Gradients of a cotangent at its output.
        inputs: What its weight multiplies, at all positions.
        matrix: The weight's Jacobian, where it is written down beside the factors.
    """

    outputs: int
    inputs: int
    matrix: int = 0


@dataclass(frozen=True, eq=False)
class Factor(abc.ABC):
    """A layer's Jacobian: what is asked of its columns, in the order of ``names``, is answered from its rows or better.

    A product with the rows costs n k d multiplications a column. From factors, ``sum_t g_t (V a_t)``, it costs
    n d t + n k o t: less where fewer positions t share the weight than there are cotangents; see ``for_products``.

    Args:
        weight: Name of the weight, ``None`` where it is not uncertain.
        bias: Name of the bias, ``None`` where there is none or it is not uncertain.
        g: What of the factor there is for each example and cotangent.
    """

    weight: str | None
    bias: str | None
    g: Float[Tensor, "n k *rest"]

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters this factor speaks for, weight first."""
        return tuple(name for name in (self.weight, self.bias) if name is not None)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors it consists of; the first axis of each counts examples."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def widened(self: T) -> T:
        """The same factor in float64: products of many terms then cancel as they should."""
        return self.in_precision(DOUBLE)

    def in_precision(self: T, precision: Precision) -> T:
        """The same factor as its products are made."""
        return self._changed(lambda value: precision.operand(value) if value.is_floating_point() else value)

    def taken(self: T, place: slice | Bool[Tensor, " n"]) -> T:
        """The factor of some of its examples."""
        return self._changed(lambda value: value[place])

    def _changed(self: T, change: Callable[[Tensor], Tensor]) -> T:
        return replace(self, **{name: change(value) for name, value in self.tensors.items()})

    def separated(self) -> tuple[Factor, ...]:
        """The factors of the weight and of the bias, where each can have a block of its own; else this one."""
        return (self,)

    # the Jacobian itself

    @abc.abstractmethod
    def rows(self) -> Float[Tensor, "n k d"]:
        """The explicit Jacobian."""

    def explicit(self) -> Factor:
        """The same with rows made once for all that is asked of it, where it would make them for every question."""
        return self

    def square_sum(self) -> Float[Tensor, " d"]:
        """``sum_nk J²`` of each weight: the diagonal of ``Jᵀ J``."""
        return self.rows().square().sum((0, 1))

    def wide_square_sum(self) -> Float[Tensor, " d"]:
        """The same in float64; of rows one at a time, as there may be many weights."""
        rows = self.rows().flatten(0, 1)
        total = torch.zeros(rows.shape[1], **wide_like(rows))
        for row in rows:
            numbers = wide(row)
            total.addcmul_(numbers, numbers)
        return total

    # products

    def for_products(self) -> Factor:
        """The same Jacobian in the form whose products are cheaper."""
        return self

    def push(self, block: Float[Tensor, "d c"]) -> Float[Tensor, "n k c"]:
        """``J V``; a product whose few columns lead is several times faster than one whose few columns follow."""
        rows = self.rows()
        return (block.mT.contiguous() @ rows.flatten(0, 1).mT).mT.unflatten(0, rows.shape[:2])

    def pull(self, block: Float[Tensor, "n k c"]) -> Float[Tensor, "d c"]:
        """``Jᵀ U``; see ``push``."""
        return (block.flatten(0, 1).mT.contiguous() @ self.rows().flatten(0, 1)).mT

    @abc.abstractmethod
    def cost(self, cotangents: int) -> Cost:
        """What products with one example take, for so many cotangents k; of a factor of one example and cotangent."""

    # KFAC: second moments, the order of the weights in G ⊗ A, and its eigenbasis

    def gradient_moment(self, sharing: Sharing, precision: Precision = DOUBLE) -> Moment | None:
        """``sum g gᵀ`` of the gradients at the layer's output; ``None`` where no Kronecker product stands for JᵀJ.

        With n examples and t positions that share the weight, *expand* takes every position for an example of its own,
        *reduce* adds up the gradients over the positions first (Eschenhagen et al. 2023, equations 14 and 22).
        """
        return None

    def input_moment(self, sharing: Sharing, precision: Precision = DOUBLE) -> Moment | None:
        """``sum a aᵀ`` of what the weight multiplies, and over how many; see ``gradient_moment``."""
        return None

    def matrix(self, flat: Shaped[Tensor, " d"]) -> Shaped[Tensor, "..."]:
        """Flat weights in the order of ``names`` as the array that ``G ⊗ A`` acts on; as they are without one."""
        return flat

    def rotated(self, left: Eigenbasis, right: Eigenbasis) -> Factor:
        """The Jacobian in the eigenbasis of ``G ⊗ A``, where the covariance of the weights is diagonal.

        Args:
            left: G.
            right: A.
        """
        raise NotImplementedError(f"{type(self).__name__} has no Kronecker product")

    def rotated_order(self, values: Float[Tensor, "m w"]) -> Float[Tensor, "m w"]:
        """What the eigenvectors of ``G ⊗ A`` have, those of G first, in the order of the columns of ``rotated``."""
        return values

    # covariances of outputs

    def covariance(self, variance: Float[Tensor, " d"]) -> Float[Tensor, "n k k"]:
        """``J diag(variance) Jᵀ`` of each example."""
        root = self.rows() * variance.sqrt()
        return root @ root.mT

    def covariances(self, variances: Float[Tensor, "m d"]) -> Float[Tensor, "m n k k"]:
        """``J diag(v) Jᵀ`` of each example for each variance v.

        Args:
            variances: v, in the order of the factor's weights.

        Cost:
            For each row the products with the others, and a matrix product of them with the variances; about a quarter
            of as many calls of ``covariance``.
        """
        if len(variances) == 1:
            return self.covariance(variances[0])[None]
        return contracted(self.rows(), variances)

    def covariances_under(self, spectra: ShiftedSpectra) -> Float[Tensor, "m n k k"]:
        """``J (s G ⊗ A + δ)⁻¹ Jᵀ`` of each example for each of several precisions, of a factor that is ``rotated``.

        Cost:
            As ``covariances``, but memory for the variances of some weights at a time.
        """
        rows = self.rows().unflatten(2, (len(spectra.left), len(spectra.right)))
        found = list[Tensor]()
        for place, variances in spectra.pieces():
            found.append(contracted(rows[:, :, place].flatten(2), variances.flatten(1)))
        return torch.stack(found).sum(0)

    def gram(self, other: Factor, variance: Float[Tensor, " d"]) -> Float[Tensor, "m m2"]:
        """``J_self diag(variance) J_otherᵀ`` between the rows of two chunks of one layer.

        Args:
            other: The same layer on other examples, or this one.
            variance: Of each weight.
        """
        return row_products(*self.narrowed(other, variance))

    def narrowed(self, other: Factor, variance: Float[Tensor, " d"]) -> tuple[Factor, Factor, Float[Tensor, " used"]]:
        """Two factors of one layer and variances of its weights, without weights that neither of them depends on."""
        return self, other, variance


@final
@dataclass(frozen=True, eq=False)
class Explicit(Factor):
    """Any parameters, their Jacobian explicit in g."""

    def rows(self) -> Float[Tensor, "n k d"]:
        """The explicit Jacobian."""
        return self.g

    def cost(self, cotangents: int) -> Cost:
        """See ``Factor``."""
        return cost_of_rows(self.g, cotangents)


def cost_of_rows(rows: Float[Tensor, "n k d"], cotangents: int) -> Cost:
    """What explicit rows that are there anyway take."""
    entries = cotangents * rows.shape[2]
    return Cost(0, entries, 0, entries, 0, 0)


@dataclass(frozen=True)
class Layer:
    """One weight (and bias) whose layer factors are known.

    Args:
        kind: Kind of the layer: a name in ``capture.KINDS``.
        weight: Name of the weight, ``None`` where only the bias is uncertain.
        bias: Name of the bias, ``None`` where there is none or it is not uncertain.
        axis: Axis of the examples in the layer's input and output.
        added: Whether its outputs are the same for all examples, and added to what is not: see ``Call``.
    """

    kind: str
    weight: str | None
    bias: str | None
    axis: int
    added: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters, weight first."""
        return tuple(name for name in (self.weight, self.bias) if name is not None)

    def owns(self, call: Call) -> bool:
        """Whether the call used this layer's parameters."""
        return (call.weight, call.bias, call.added) == (self.weight, self.bias, self.added)


@final
@dataclass(frozen=True)
class Call:
    """One use of a layer function on watched weights.

    Args:
        kind: The kind of layer; decides how (a, g) make the Jacobian.
        weight: Name of the weight, ``None`` where only the bias is watched.
        bias: Name of the bias, ``None`` where there is none or it is not watched.
        input: What the weight multiplies: the layer's input; for norms normalised, for embeddings the indices.
        options: What else the kind knows of this use, such as the geometry of a convolution.
        edge: Where the gradient of the layer's output arrives.
        shape: Shape of the layer's output.
        dtype: Its type.
        added: Whether edge and shape are those of the sum that the layer's output was added to, where each example has
            a gradient of its own even if that output is the same for all of them.
    """

    kind: type[LayerKind]
    weight: str | None
    bias: str | None
    input: Tensor
    options: Any
    edge: GradientEdge
    shape: torch.Size
    dtype: torch.dtype
    added: bool = False


class LayerKind(Factor):
    """A kind of layer: how its function is recognised, and its Jacobian by factors; a subclass is all a kind needs.

    ``capture.LAYERS`` says of which functions.
    """

    kronecker: ClassVar[bool] = True
    """Whether a Kronecker product stands for ``Jᵀ J``: see ``gradient_moment``."""

    affine: ClassVar[bool] = False
    """Whether its outputs are its weight times its input, and its bias."""

    recorded: ClassVar[bool] = True
    """Whether its rows are recorded for any number of examples: their shapes depend on no number."""

    by_output: ClassVar[bool] = False
    """Whether its weight has one row an output, so that of the layer that makes the outputs ``J = I ⊗ aᵀ``."""

    @classmethod
    def signature(cls, func: Callable[..., Any]) -> inspect.Signature:
        """The arguments of one of its functions."""
        return inspect.signature(func)

    @classmethod
    @abc.abstractmethod
    def input_and_options(cls, func: Callable[..., Any], given: dict[str, Any]) -> tuple[Tensor, Any]:
        """What is recorded of a call: the input that the weight multiplies, and ``Call.options``.

        Args:
            func: The function.
            given: Its arguments by name.

        Raises:
            UnsupportedError: If the call cannot be that of a layer in a trained network.
        """

    @classmethod
    def parameters(cls, given: dict[str, Any]) -> tuple[object, object]:
        """What are weight and bias among the arguments of its function, by name; ``None`` where there is none."""
        return given.get("weight"), given.get("bias")

    @classmethod
    def kept(cls, layer: Layer, call: Call, g: Tensor, n: int) -> Tensor:
        """What is kept of a gradient at the output of one use, for n examples: here all of it."""
        return g

    @classmethod
    @abc.abstractmethod
    def of(cls, layer: Layer, calls: list[Call], grads: list[Tensor], n: int) -> LayerKind:
        """The factor of n examples; several uses of the weight count as positions of one.

        Args:
            layer: The layer.
            calls: Its uses.
            grads: What was kept of the gradients of each use, with the cotangents on axis 1.
            n: Examples.
        """

    @classmethod
    def sizes(cls, call: Call, n: int, weights: int) -> Sizes:
        """Numbers that a use makes of each of n examples.

        Args:
            call: The use.
            n: Examples of that call.
            weights: Entries of the weight, 0 where it is not uncertain.
        """
        return Sizes(call.shape.numel() // n, call.input.numel() // n)


def examples_first(x: Tensor, axis: int, n: int, features: int) -> Tensor:
    """``x`` as ``[n, t, *features]``: examples first, everything that shares the weight in one axis."""
    x = x.movedim(axis, 0)
    return x.reshape(n, -1, *x.shape[x.ndim - features :])


def by_example(x: Tensor, axis: int, n: int) -> Float[Tensor, "n k t f"]:
    """Gradients with the cotangents on axis 1, as examples, cotangents, all that shares the weight, features."""
    return examples_first(x.movedim(1, -2), axis, n, 2).transpose(1, 2)


def at_positions(uses: list[Tensor], axis: int) -> Tensor:
    """What several uses of one weight have, as if they were positions of one use; that of one use itself."""
    return uses[0] if len(uses) == 1 else torch.cat(uses, axis)


def contracted(
    rows: Float[Tensor, "n k d"], variances: Float[Tensor, "*n m d"], numbers: int = NUMBERS
) -> Float[Tensor, "m n k k"]:
    """``R diag(v) Rᵀ`` of each block of rows R: of few variances each by itself, of many from products of the rows.

    Args:
        rows: R.
        variances: v, not negative, the same for all blocks or for each its own.
        numbers: Products of rows made at a time.

    Example:
        >>> contracted(torch.ones(1, 2, 3), torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 1.0]])).tolist()
        [[[[3.0, 3.0], [3.0, 3.0]]], [[[1.0, 1.0], [1.0, 1.0]]]]
    """
    if variances.shape[-2] < rows.shape[1]:
        return contracted_one_by_one(rows, variances, numbers)
    n, k, d = rows.shape
    one, other = torch.triu_indices(k, k, device=rows.device)
    found = rows.new_zeros(n, len(one), variances.shape[-2])
    each = max(1, numbers // (WIDTH * max(1, len(one))))
    width = max(WIDTH, numbers // (max(1, len(one)) * max(1, min(n, each))))
    for first in range(0, n, each):
        some = slice(first, first + each)
        own = variances if variances.ndim == 2 else variances[some]
        for start in range(0, d, width):
            part = rows[some, :, start : start + width]
            products = torch.cat([part[:, i, None] * part[:, i:] for i in range(k)], 1)
            found[some] += products @ own[..., start : start + width].mT
    whole = found.new_empty(n, k, k, found.shape[-1])
    whole[:, one, other] = found
    whole[:, other, one] = found
    return whole.movedim(-1, 0)


def contracted_one_by_one(
    rows: Float[Tensor, "n k d"], variances: Float[Tensor, "*n m d"], numbers: int = NUMBERS
) -> Float[Tensor, "m n k k"]:
    """The same by roots ``R diag(√v)``, which take less where there are fewer variances than rows in a block."""
    n, k, d = rows.shape
    roots = variances.sqrt().movedim(-2, 0).unsqueeze(-2)  # [m, 1, d] or [m, n, 1, d]
    together = max(1, numbers // max(1, k * d))
    found: list[Tensor] = []
    for root in roots:
        blocks: list[Tensor] = []
        for first in range(0, n, together):
            some = slice(first, first + together)
            scaled = rows[some] * (root if root.ndim == 2 else root[some])
            blocks.append(scaled @ scaled.mT)
        found.append(torch.cat(blocks) if blocks else rows.new_zeros(0, k, k))
    return torch.stack(found)


def row_products(
    left: Factor,
    right: Factor,
    variance: Float[Tensor, " d"],
    rotate: Callable[[Factor], Factor] | None = None,
    max_bytes: int = ROWS,
) -> Float[Tensor, "m m2"]:
    """``J_left diag(variance) J_rightᵀ`` of one layer, from the explicit rows of a few examples at a time.

    Args:
        left: The layer's factor on m / k examples.
        right: That on others, or the same one.
        variance: Of each weight, in the basis that ``rotate`` leads to.
        rotate: To a basis in which the covariance of the weights is diagonal; ``None`` where it is.
        max_bytes: Bytes the rows of some examples may take beside those of others.
    """
    (n, k) = left.g.shape[:2]
    m = len(right.g)
    size = max(1, max_bytes // (k * len(variance) * left.g.itemsize))
    root = variance.sqrt()

    def rows(factor: Factor, start: int) -> Float[Tensor, "m d"]:
        some = factor.taken(slice(start, start + size))
        if rotate is not None:
            some = rotate(some)
        return (some.rows() * root).flatten(0, 1)

    blocks: list[Tensor] = []
    for i in range(0, n, size):
        own = rows(left, i)
        row: list[Tensor] = []
        for j in range(0, m, size):
            other = own if left is right and i == j else rows(right, j)
            row.append(own @ other.mT)
        blocks.append(torch.cat(row, dim=1))
    return torch.cat(blocks)


def square_sums(network: Network, factors: Iterable[Factor]) -> Float[Tensor, " d"]:
    """``sum_nk J²`` of the uncertain weights, in the order of the flat vector."""
    return network.joined((factor.names, factor.square_sum()) for factor in factors)


def jacobian_rows(network: Network, factors: Iterable[Factor]) -> Float[Tensor, "n k d"]:
    """The explicit Jacobian of a chunk in the uncertain weights, in the order of the flat vector."""
    return network.joined((factor.names, factor.rows()) for factor in factors)
