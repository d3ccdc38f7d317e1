"""KFAC: a Kronecker product for each layer, from second moments of what comes in and of what is pulled back."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.curvature.moment import LARGE, Moment
from lapwing.curvature.outputs import OutputSum
from lapwing.curvature.sums import Entries, Held, decompose, decompose_dealt
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import ConfigError
from lapwing.jacobian.layers.factors import ConvOptions, Factor, Outer, T, patches, separated
from lapwing.jacobian.layers.lookup import Lookup
from lapwing.jacobian.network.network import Network
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, FunctionOperator, Kronecker, Structured, nystrom
from lapwing.linalg.operators.eigenbasis import Eigenbasis, decompose_root

Sharing: TypeAlias = Literal["expand", "reduce"]
Bias: TypeAlias = Literal["joint", "separate"]

EXACT = 1024
"""Largest block of a parameter without Kronecker structure that is kept exact; beyond it only the diagonal is."""


class KroneckerSum:
    """Adds up KFAC: a block ``G ⊗ A`` for each linear map, convolution and embedding, an exact block for each norm.

    With n examples and t positions that share the weight, *expand* takes every position for an example of its own,
    ``G = sum_ntk g gᵀ, A = sum_nt a aᵀ / (n t)``; *reduce* averages the inputs and adds up the gradients over the
    positions first (Martens & Grosse 2015, section 3; Eschenhagen et al. 2023, equations 14 and 22). An embedding
    always expands: its A is then diagonal, the frequency of each row. All is added up in float64, as in ``DenseSum``.

    Args:
        network: The network whose weights are uncertain.
        sharing: How positions that share a weight are treated.
        bias: Whether a bias is a last input of its weight's block, or has a block of its own.
        rank: Eigenpairs kept of a factor with ``LARGE`` times as many rows or more; ``None`` keeps all of all.

    Raises:
        ConfigError: If only single entries of a parameter are uncertain.
    """

    floats, at_once = 0, 1

    def __init__(
        self,
        network: Network,
        sharing: Sharing = "expand",
        bias: Bias = "joint",
        rank: int | None = None,
    ) -> None:
        if network.index is not None:
            raise ConfigError(
                "whole parameters to be uncertain for KFAC",
                "a subnetwork of single weights",
                "structure Full or Diagonal, or weights=Names(...)",
            )
        self._network, self._bias = network, bias
        self._sharing: Sharing = sharing
        self._index: dict[tuple[str, ...], Tensor] = {}
        cut = partial(leading, rank=rank)
        self._left, self._right = (defaultdict[tuple[str, ...], Moment](lambda: Moment(cut, rank)) for _ in range(2))
        self._exact = defaultdict[tuple[str, ...], Moment](Moment)
        self._count: Counter[tuple[str, ...]] = Counter()
        self._outputs: OutputSum | None = None

    def add(self, factors: Iterator[Factor], *, again: bool = False) -> None:
        """Take in the factors of one block of cotangents of one chunk; its inputs only with the first block."""
        for part in self._parts(factors):
            if isinstance(part, Outer | Lookup):
                g = gradients(part, self._sharing)
                self._left[part.names].add(g.shape, lambda g=g: g, lambda g=g: sum_outer(g))
                if not again:
                    self._add_inputs(part)
            elif (x := part.rows().flatten(0, 1).double()).shape[1] > EXACT:
                self._exact[part.names].add_total(x.square().sum(0))
            else:
                shape = (len(x), 1, x.shape[1], 1)
                self._exact[part.names].add(shape, lambda x=x: x[:, None, :, None], lambda x=x: x.mT @ x)

    def add_outputs(self, head: Outer, entries: Entries) -> None:
        """Take in one chunk of a head, whose gradient is the identity; see ``DenseSum``."""
        self._outputs = self._outputs or OutputSum()
        self._outputs.add(entries)
        for part in self._parts([head]):
            self._add_inputs(part)

    def _parts(self, factors: Iterable[T]) -> Iterator[T]:
        """Factors with a block of their own, whose place is known from then on."""
        for factor in factors:
            for part in separated(factor) if self._bias == "separate" else (factor,):
                if part.names not in self._index:
                    self._index[part.names] = block_index(part, self._network)
                yield part

    def _add_inputs(self, factor: Outer | Lookup) -> None:
        """Take in the inputs of one layer, and how many; the moment of an embedding's is diagonal."""
        moment, reduce = self._right[factor.names], self._sharing == "reduce"
        if isinstance(factor, Lookup):
            row = factor.uses[1]
            moment.add_total(torch.bincount(row, minlength=factor.shape[0]).double())
            self._count[factor.names] += len(row)
            return
        wide, ones = replace(factor, a=factor.a.double()), int(factor.bias is not None)
        n, p, t = len(factor.g), factor.g.shape[2], 1 if reduce else factor.positions
        sliding = factor.weight is not None and factor.options is not None and slides(factor.a, factor.options)

        def columns() -> Tensor:
            return wide.columns.mean(-1, keepdim=True) if reduce else wide.columns

        def total() -> Tensor:
            if factor.options is not None and sliding and not reduce:
                return autocorrelation(wide.a, factor.options, ones)
            return sum_outer(columns())

        rows = ones + (0 if factor.weight is None else factor.width)
        moment.add((n, p, rows, t), columns, total)
        self._count[factor.names] += n * t

    def share(self, data: Data) -> None:
        """Add what other processes have; see ``DenseSum``."""
        if self._outputs is not None:
            self._outputs.share(data)
        if data.shared:
            for moment in self._moments:
                data.added(moment.total)
            if costly := [moment for moment in self._moments if moment.effort]:
                decompose_dealt(costly)
        for names, count in self._count.items():
            self._count[names] = int(data.added(torch.tensor(count)))

    @property
    def cut(self) -> bool:
        """Whether a factor is held by its leading eigenpairs."""
        return any(moment.cut for moment in self._moments)

    @property
    def _moments(self) -> tuple[Moment, ...]:
        return (*self._left.values(), *self._right.values(), *self._exact.values())

    def result(self) -> Held:
        """The blocks, in order of first use, their factors decomposed."""
        decompose(self._moments)
        found = [(*pair, each) for each in self._index for pair in self._blocks(each)]
        blocks, index, partition = zip(*found, strict=True)
        return Held(BlockDiagonal(blocks, index), partition)

    def _blocks(self, names: tuple[str, ...]) -> Iterator[tuple[Structured, Tensor]]:
        index, count = self._index[names], self._count[names]
        if self._outputs is not None:
            yield from self._outputs.blocks(self._right[names].decomposed, count, index)
        elif names in self._left:
            yield Kronecker(self._left[names].decomposed, self._right[names].decomposed, 1.0 / max(count, 1)), index
        else:
            exact = self._exact[names].decomposed
            yield Diagonal(exact) if isinstance(exact, Tensor) else Dense(exact.matrix, basis=exact), index


def block_index(factor: Factor, network: Network) -> Int[Tensor, " d"]:
    """Where the entries of a factor's block lie in the flat vector, in the order in which its operator sees them."""
    places = [network.layout.slices[name] for name in factor.names]
    flat = torch.cat([torch.arange(place.start, place.stop) for place in places])
    if isinstance(factor, Outer):
        flat = factor.matrix(flat)
    elif isinstance(factor, Lookup):
        flat = flat.view(factor.shape).mT
    return flat.flatten().to(network.like.device)


def leading(matrix: Float[Tensor, "m m"], rank: int | None) -> Eigenbasis | None:
    """So many eigenpairs of a second moment, what they leave of its trace spread evenly; of a small one none."""
    if rank is None or len(matrix) < LARGE * rank:
        return None
    held = FunctionOperator(matrix.matmul, matrix.matmul, (len(matrix), len(matrix)), matrix)
    factor = nystrom(held, rank, power=1, generator=torch.Generator().manual_seed(0))
    return decompose_root(factor, float(matrix.trace()))


def gradients(factor: Outer | Lookup, sharing: Sharing) -> Float[Tensor, "n p o t"]:
    """Gradients at the outputs of one layer, float64, as columns that are added up."""
    if isinstance(factor, Lookup):
        return factor.uses[2].flatten(0, 1).double().mT[None, None]
    if sharing == "reduce":
        return factor.g.double().sum(-1, keepdim=True).flatten(0, 1)
    g = factor.g if factor.g.stride(0) >= factor.g.stride(1) else factor.g.transpose(0, 1)  # as it lies in memory
    return g.flatten(0, 1).double()


def sum_outer(x: Float[Tensor, "n p i t"]) -> Float[Tensor, "p i i"]:
    """``sum_nt x xᵀ`` for each group: one product, or one an example where a copy in one piece would be larger."""
    if x.shape[2] < x.shape[3] and x.stride(0) > x.stride(2):
        return (x @ x.mT).sum(0)
    flat = x.permute(1, 2, 0, 3).flatten(2)
    return flat @ flat.mT


def slides(image: Float[Tensor, "n channels *space"], options: ConvOptions) -> bool:
    """Whether ``autocorrelation`` applies, and pays: where the borders are not most of the image."""
    steps = (*options.stride, *options.dilation)
    sizes = zip(image.shape[2:], options.padding, options.kernel, strict=True)
    return steps == (1, 1, 1, 1) and all(size + sum(sides) >= 2 * k for size, sides, k in sizes)


def autocorrelation(
    image: Float[Tensor, "n channels h w"], options: ConvOptions, ones: int = 0
) -> Float[Tensor, "p i i"]:
    """``sum_nt a aᵀ`` over the patches a of a convolution that moves by one pixel; the patches are not unfolded.

    Two pixels of a patch have their products added up over a window of the image. For the two a column to the right, or
    a row below, the window moves by one: products that enter it are added, those that leave it subtracted.

    Args:
        image: The convolution's input.
        options: Its geometry.
        ones: Inputs that are one after each patch, at most one.

    Cost:
        About ``2 prod(kernel)`` products of two channels at each pixel, in place of ``prod(kernel)²``; memory
        ``kernel[1]`` images.
    """
    (kh, kw), p = options.kernel, options.groups
    x = options.padded(image).unflatten(1, (p, -1)).permute(1, 2, 3, 0, 4)  # [p, channels, h, n, w]
    rows, columns = x.shape[2] - kh + 1, x.shape[4] - kw + 1
    shifted = torch.stack([x[..., v : v + columns] for v in range(kw)], 1)
    ends = moved(x[..., columns:].movedim(4, 1), x[..., : kw - 1].movedim(4, 1))
    found = x.new_empty(p, kh, kw, x.shape[1], kh, kw, x.shape[1])
    for e in range(kh):
        found[:, 0, :, :, e] = rows_apart(shifted, ends, rows, e)
    left, right = moved(shifted[:, :, :, rows:].movedim(3, 1), shifted[:, :, :, : kh - 1].movedim(3, 1))
    for u in range(kh - 1):
        change = products(left[:, u], right[:, u:].flatten(1, 2)).unflatten(3, (-1, kw))
        found[:, u + 1, :, :, u + 1 :] = found[:, u, :, :, u:-1] + change
        found[:, u + 1 :, :, :, u] = found[:, u, :, :, u + 1 :].permute(0, 3, 4, 5, 1, 2)
    whole = F.pad(found.permute(0, 3, 1, 2, 6, 4, 5).flatten(4).flatten(1, 3), (0, ones, 0, ones))
    if ones:
        whole[:, :-1, -1] = whole[:, -1, :-1] = patches(image.sum(0, keepdim=True), options)[0].sum(2)
        whole[:, -1, -1] = len(image) * rows * columns
    return whole


def rows_apart(shifted: Tensor, ends: tuple[Tensor, Tensor], rows: int, e: int) -> Float[Tensor, "p v c v2 c2"]:
    """Products of the pixels of a patch's first row with those e rows below, added up over the patches.

    Args:
        shifted: The image from each column of a patch on, ``[p, v, c, h, n, w]``.
        ends: The columns that enter and leave as the window moves.
        rows: Rows of the window.
        e: How far apart.
    """
    here, there = shifted[:, :, :, :rows], shifted[:, :, :, e : e + rows]
    change = products(ends[0][:, :, :, :rows], ends[1][:, :, :, e : e + rows])
    found = here.new_empty(*shifted.shape[:3], *shifted.shape[1:3])
    found[:, :1] = products(here[:, :1], there)
    mirrored = found[:, :1, :, 1:].permute(0, 3, 4, 1, 2)
    found[:, 1:, :, :1] = products(here[:, 1:], there[:, :1]) if e else mirrored
    for v in range(shifted.shape[1] - 1):
        found[:, v + 1, :, 1:] = found[:, v, :, :-1] + change[:, v]
    return found


def moved(entering: Tensor, leaving: Tensor) -> tuple[Tensor, Tensor]:
    """Two factors whose product is that of what enters with itself less that of what leaves."""
    return torch.cat([entering, -leaving], -1), torch.cat([entering, leaving], -1)


def products(left: Float[Tensor, "p a c *k"], right: Float[Tensor, "p b d *k"]) -> Float[Tensor, "p a c b d"]:
    """Inner products over all axes from the fourth on."""
    found = left.flatten(3).flatten(1, 2) @ right.flatten(3).flatten(1, 2).mT
    return found.unflatten(2, right.shape[1:3]).unflatten(1, left.shape[1:3])
