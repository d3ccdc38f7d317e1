"""What one layer contributes to the Jacobian, held as factors: J = sum_t g_t a_tᵀ, never as an n × c × d array.

n examples, k cotangents (outputs, or columns of a root), t positions that share the weight, C columns.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TypeVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from lapwing.jacobian.network.network import Network
from lapwing.linalg.operators.eigenbasis import Eigenbasis

T = TypeVar("T", bound="Factor")


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
    def held(self) -> dict[str, Tensor]:
        """The tensors it consists of; the first axis of each counts examples."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def double(self: T) -> T:
        """The same factor in float64: products of many terms then cancel as they should."""
        return self._changed(lambda value: value.double() if value.is_floating_point() else value)

    def taken(self: T, place: slice) -> T:
        """The factor of some of its examples."""
        return self._changed(lambda value: value[place])

    def _changed(self: T, change: Callable[[Tensor], Tensor]) -> T:
        return replace(self, **{name: change(value) for name, value in self.held.items()})

    @abc.abstractmethod
    def rows(self) -> Float[Tensor, "n k d"]:
        """The explicit Jacobian."""

    def for_products(self) -> Factor:
        """The same Jacobian in the form whose products are cheaper."""
        return self

    def square_sum(self) -> Float[Tensor, " d"]:
        """``sum_nk J²`` of each weight: the diagonal of ``Jᵀ J``."""
        return self.rows().square().sum((0, 1))

    def covariance(self, variance: Float[Tensor, " d"]) -> Float[Tensor, "n k k"]:
        """``J diag(variance) Jᵀ`` of each example."""
        root = self.rows() * variance.sqrt()
        return root @ root.mT

    def push(self, block: Float[Tensor, "d c"]) -> Float[Tensor, "n k c"]:
        """``J V``; a product whose few columns lead is several times faster than one whose few columns follow."""
        rows = self.rows()
        return (block.mT.contiguous() @ rows.flatten(0, 1).mT).mT.unflatten(0, rows.shape[:2])

    def pull(self, block: Float[Tensor, "n k c"]) -> Float[Tensor, "d c"]:
        """``Jᵀ U``; see ``push``."""
        return (block.flatten(0, 1).mT.contiguous() @ self.rows().flatten(0, 1)).mT


@final
@dataclass(frozen=True, eq=False)
class Rows(Factor):
    """Any parameters, their Jacobian explicit in g: the affine part of norms, and layers without a rule."""

    def rows(self) -> Float[Tensor, "n k d"]:
        """The explicit Jacobian."""
        return self.g


@final
@dataclass(frozen=True)
class ConvOptions:
    """Geometry of a convolution, one entry a spatial axis; padding as (before, after)."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int

    def padded(self, image: Float[Tensor, "n channels *space"]) -> Float[Tensor, "n channels *larger"]:
        """An image with the zeros around it."""
        return F.pad(image, [side for sides in reversed(self.padding) for side in sides])


@final
@dataclass(frozen=True, eq=False)
class Outer(Factor):
    """A linear map or convolution, with its bias: weight gradient ``sum_t g_t a_tᵀ``, bias gradient ``sum_t g_t``.

    Args:
        g: Gradients at the layer's output, o to a group, ``[n, k, p, o, t]``.
        a: The layer's inputs, in p independent groups of i, ``[n, p, i, t]``; for a convolution ``[n, channels,
            *space]``, unfolded when they are asked for.
        options: Geometry of a convolution.
    """

    a: Float[Tensor, "n *inputs"]
    options: ConvOptions | None = None

    @property
    def positions(self) -> int:
        """Positions t that share the weight."""
        return self.g.shape[-1]

    @property
    def width(self) -> int:
        """Inputs i of a group."""
        if self.options is None:
            return self.a.shape[2]
        return self.a.shape[1] // self.options.groups * torch.Size(self.options.kernel).numel()

    def for_products(self) -> Factor:
        """Rows; or factors laid out as products need them, where there are fewer positions than cotangents."""
        if not self.factored(self.g.shape[1]):
            return Rows(self.weight, self.bias, self.rows())
        a = self.a if self.options is None else patches(self.a, self.options)
        return Outer(self.weight, self.bias, self.g.mT.contiguous().mT, a.mT.contiguous().mT)

    def factored(self, cotangents: int) -> bool:
        """Whether a column costs fewer multiplications from factors than from rows, for so many cotangents."""
        p, t = self.g.shape[2], self.positions
        return p == 1 and self.weight is not None and t * (self.width + cotangents) < cotangents * self.width

    @cached_property
    def columns(self) -> Float[Tensor, "n p i t"]:
        """The layer's inputs as columns, with a last input of ones where the bias is uncertain."""
        n, _, p, _, t = self.g.shape
        ones = self.a.new_ones(()).expand(n, p, int(self.bias is not None), t)
        if self.weight is None:
            return ones
        if self.options is not None:
            return patches(self.a, self.options, ones.shape[2])
        return self.a if self.bias is None else torch.cat([self.a, ones], dim=2)

    def turned(self, basis: Eigenbasis) -> Float[Tensor, "n p w t"]:
        """The columns in an eigenbasis; those of a convolution by another one, whose kernels are the eigenvectors."""
        if self.options is None or self.weight is None or basis.others:
            columns = self.columns.movedim(0, 2)
            return basis.into(columns.flatten(2)).unflatten(2, columns.shape[2:]).movedim(2, 0)
        o, still = self.options, (0,) * len(self.options.kernel)
        rows = basis.vectors.to(self.a).mT.expand(o.groups, -1, -1).flatten(0, 1)
        kernels, bias = (rows, None) if self.bias is None else (rows[:, :-1], rows[:, -1])
        image, kernels = o.padded(self.a), kernels.unflatten(1, (-1, *o.kernel))
        moved = torch.convolution(image, kernels, bias, o.stride, still, o.dilation, False, still, o.groups)
        return moved.unflatten(1, (o.groups, -1)).flatten(3)

    def by_position(self, places: Int[Tensor, " p"] | None = None) -> Outer:
        """Its inputs, those of each position, or of some, as an example of its own, and no gradients."""
        a = self.columns.squeeze(1).mT
        a = (a if places is None else a[:, places]).flatten(0, 1)[:, None, :, None]
        if self.weight is not None and self.bias is not None:
            a = a[:, :, :-1]
        return replace(self, g=a.new_empty(len(a), 0, 1, self.g.shape[3], 1), a=a, options=None)

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

    def square_sum(self) -> Float[Tensor, " d"]:
        """``sum_t g_t a_tᵀ`` squared; at one position the squares of both."""
        if self.positions > 1:
            return self.flat(self.matrices.square_().sum((0, 1)))
        g, a = self.g.squeeze(-1).square().sum(1), self.columns.squeeze(-1).square()
        return self.flat(torch.einsum("npo,npi->poi", g, a))

    def covariance(self, variance: Float[Tensor, " d"]) -> Float[Tensor, "n k k"]:
        """``J diag(variance) Jᵀ``; at one position without rows."""
        scale = self.matrix(variance)
        if self.positions > 1:
            root = self.matrices.mul_(scale.sqrt()).flatten(2)
            return root @ root.mT
        g, a = self.g.squeeze(-1), self.columns.squeeze(-1)
        root = (g * torch.einsum("npi,poi->npo", a.square(), scale).sqrt().unsqueeze(1)).flatten(2)
        return root @ root.mT

    def push(self, block: Float[Tensor, "d c"]) -> Float[Tensor, "n k c"]:
        """``J V = sum_t g_tᵀ (V a_t)``, from what ``for_products`` made."""
        a, g = self.a[:, 0].mT, self.g[:, :, 0].mT
        i, o = a.shape[-1], g.shape[-1]
        weight = block[: o * i].view(o, i, -1).mT.reshape(-1, i)
        moved = a.flatten(0, 1) @ weight.mT
        if self.bias is not None:
            moved += block[o * i :].flatten()
        return combine(g.flatten(2), moved.view(len(a), g.shape[2] * o, -1))

    def pull(self, block: Float[Tensor, "n k c"]) -> Float[Tensor, "d c"]:
        """``Jᵀ U``, from the same: the gradients combined first, then one product with the inputs."""
        a, g = self.a[:, 0].mT, self.g[:, :, 0].mT
        i, o, width = a.shape[-1], g.shape[-1], block.shape[2]
        moved = combine(g.flatten(2).mT, block).reshape(-1, o * width)
        weight = (moved.mT @ a.flatten(0, 1)).view(o, width, i).mT.reshape(-1, width)
        return weight if self.bias is None else torch.cat([weight, moved.sum(0).view(o, width)])

    def flat(self, matrices: Float[Tensor, "... p o i"]) -> Float[Tensor, "... d"]:
        """Matrices with the bias in the last column, as flat weights in the order of ``names``."""
        if self.weight is None or self.bias is None:
            return matrices.flatten(-3)
        return torch.cat([matrices[..., :-1].flatten(-3), matrices[..., -1].flatten(-2)], dim=-1)

    def matrix(self, flat: Shaped[Tensor, " d"]) -> Shaped[Tensor, "p o i"]:
        """Flat weights in the order of ``names`` as matrices with the bias in the last column."""
        p, o = self.g.shape[2:4]
        if self.weight is None or self.bias is None:
            return flat.view(p, o, -1)
        return torch.cat([flat[: -p * o].view(p, o, -1), flat[-p * o :].view(p, o, 1)], dim=-1)


def separated(factor: T) -> tuple[T, ...]:
    """A factor whose bias has a block of its own."""
    if isinstance(factor, Outer) and factor.weight is not None and factor.bias is not None:
        return replace(factor, bias=None), replace(factor, weight=None)
    return (factor,)


def patches(image: Float[Tensor, "n channels *space"], options: ConvOptions, ones: int = 0) -> Float[Tensor, "n p i t"]:
    """The patch of a convolution's input under each output position, followed by ``ones`` inputs that are one.

    Cost:
        ``n * channels * prod(kernel) * t`` numbers, those of one input side by side for all examples; the only place
        where patches are unfolded.
    """
    axes = len(options.kernel)
    windows = options.padded(image)
    for axis, (k, s, d) in enumerate(zip(options.kernel, options.stride, options.dilation, strict=True)):
        windows = windows.unfold(2 + axis, d * (k - 1) + 1, s)[..., ::d]
    windows = windows.unflatten(1, (options.groups, -1))  # [n, p, channels, *space, *kernel]
    space, kernel = range(3, 3 + axes), range(3 + axes, 3 + 2 * axes)
    windows = windows.permute(1, 2, *kernel, 0, *space)
    inputs, positions = windows.shape[1 : 2 + axes], windows.shape[2 + axes :]
    out = image.new_empty(options.groups, inputs.numel() + ones, *positions)
    out[:, : inputs.numel()].unflatten(1, inputs).copy_(windows)
    out[:, inputs.numel() :] = 1.0
    return out.flatten(3).movedim(2, 0)


def combine(left: Float[Tensor, "n a b"], right: Float[Tensor, "n b c"]) -> Float[Tensor, "n a c"]:
    """The matrix product of each example; many tiny ones with a single column are faster as one sum."""
    if right.shape[2] > 1:
        return left @ right
    return (left * right.mT).sum(2, keepdim=True)


def square_sums(network: Network, factors: Iterable[Factor]) -> Float[Tensor, " d"]:
    """``sum_nk J²`` of the uncertain weights, in the order of the flat vector."""
    return network.joined((factor.names, factor.square_sum()) for factor in factors)


def jacobian_rows(network: Network, factors: Iterable[Factor]) -> Float[Tensor, "n k d"]:
    """The explicit Jacobian of a chunk in the uncertain weights, in the order of the flat vector."""
    return network.joined((factor.names, factor.rows()) for factor in factors)
