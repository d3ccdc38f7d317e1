"""Curvature as a sum over data: one sweep, whatever adds up the layer factors it sees: dense, diagonal or KFAC."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.curvature.fold import Fold, Totals
from lapwing.curvature.ggn import GGN, Curvature
from lapwing.ground.errors import ConfigError
from lapwing.jacobian.layers.convolution import autocorrelation, slides
from lapwing.jacobian.layers.factors import Factor, Outer, jacobian_rows, square_sums
from lapwing.jacobian.layers.lookup import Lookup
from lapwing.jacobian.model import BUDGET, Model
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods.base import COLUMNS
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, Kronecker, Structured
from lapwing.linalg.structured import finite


@runtime_checkable
class Accumulator(Protocol):
    """A structure being added up."""

    @property
    def floats(self) -> int:
        """Numbers the structure needs for each example and cotangent, beyond the layer factors."""
        ...

    @property
    def at_once(self) -> int:
        """Cotangents it takes at once: one, where more would share no work."""
        ...

    def add(self, factors: Iterator[Factor], *, again: bool = False) -> None:
        """Take in the factors of one block of cotangents of one chunk, ``again`` after the chunk's first block."""
        ...

    def result(self) -> Held:
        """What was added up."""
        ...


@final
@dataclass(frozen=True, eq=False)
class Held:
    """Curvature in a structure.

    Args:
        operator: The matrix, on the flat vector of uncertain weights.
        partition: Parameters of each block, where the operator is a ``BlockDiagonal``; empty otherwise.
    """

    operator: Structured
    partition: tuple[tuple[str, ...], ...] = ()


def sweep(
    model: Model, curvature: Curvature, total: Accumulator, *, generator: torch.Generator | None = None
) -> Totals:
    """One pass over the data that feeds ``total``.

    Args:
        model: The network, its likelihood, and the data.
        curvature: Which matrix.
        total: What adds up the factors.
        generator: Source of randomness of the curvature.

    Returns:
        Sums over the data.

    Cost:
        One forward pass, and a backward pass through the activations for each cotangent; memory ``BUDGET``.
    """
    data = Fold(model, chunk_size(model, curvature, total.floats))
    size = COLUMNS if model.survey.loose else total.at_once
    for forward, f, y in data:
        blocks = curvature.cotangents(model.likelihood, f, y, generator=generator)
        for number, cotangents in enumerate(part for block in blocks for part in block.split(size)):
            total.add(forward.factors(cotangents), again=number > 0)
    return data.totals()


def chunk_size(model: Model, curvature: Curvature, floats: int = 0) -> int:
    """Examples to a chunk so that their factors stay within ``BUDGET``."""
    outputs = model.event[-1]
    roots = 3 * model.width * outputs if isinstance(curvature, GGN) else 0
    return model.chunk(curvature.width(outputs), BUDGET, floats, roots)


class DenseSum:
    """Adds up ``sum_nk (J_nᵀ u_nk)(J_nᵀ u_nk)ᵀ``, d by d, in float64 whatever the network's dtype.

    Added up in float32, directions the data say nothing about would get a curvature of 1e-7 times the largest, more
    than a weak prior's precision.

    Args:
        network: The network whose weights are uncertain.
    """

    at_once = COLUMNS

    def __init__(self, network: Network) -> None:
        self._network = network
        self._total = torch.zeros(network.size, network.size, dtype=torch.float64, device=network.like.device)

    @property
    def floats(self) -> int:
        """One explicit row."""
        return self._network.layout.size

    def add(self, factors: Iterator[Factor], *, again: bool = False) -> None:
        """Take in the factors of one block of cotangents of one chunk."""
        rows = jacobian_rows(self._network, factors).flatten(0, 1).double()
        self._total.addmm_(rows.mT, rows)

    def result(self) -> Held:
        """The matrix."""
        return Held(Dense(self._total))


class DiagonalSum:
    """Adds up ``sum_nk (J_nᵀ u_nk)²``, one number a weight.

    Args:
        network: The network whose weights are uncertain.
    """

    floats, at_once = 0, COLUMNS

    def __init__(self, network: Network) -> None:
        self._network = network
        self._total = network.like.new_zeros(network.size)

    def add(self, factors: Iterator[Factor], *, again: bool = False) -> None:
        """Take in the factors of one block of cotangents of one chunk."""
        self._total += square_sums(self._network, factors)

    def result(self) -> Held:
        """The diagonal.

        Raises:
            NumericalError: If a square overflowed.
        """
        return Held(Diagonal(finite(self._total)))


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

    Raises:
        ConfigError: If only single entries of a parameter are uncertain.
    """

    floats, at_once = 0, 1

    def __init__(self, network: Network, sharing: Sharing = "expand", bias: Bias = "joint") -> None:
        if network.index is not None:
            raise ConfigError(
                "whole parameters to be uncertain for KFAC",
                "a subnetwork of single weights",
                "structure Full or Diagonal, or weights=Names(...)",
            )
        self._network, self._bias = network, bias
        self._sharing: Sharing = sharing
        self._index: dict[tuple[str, ...], Tensor] = {}
        self._left, self._right, self._exact = (defaultdict[tuple[str, ...], Any](float) for _ in range(3))
        self._count: Counter[tuple[str, ...]] = Counter()

    def add(self, factors: Iterator[Factor], *, again: bool = False) -> None:
        """Take in the factors of one block of cotangents of one chunk; its inputs only with the first block."""
        for factor in factors:
            for part in separated(factor) if self._bias == "separate" else (factor,):
                names = part.names
                if names not in self._index:
                    self._index[names] = block_index(part, self._network)
                if isinstance(part, Outer | Lookup):
                    self._left[names] += gradient_moment(part, self._sharing)
                    if not again:
                        right, count = input_moment(part, self._sharing)
                        self._right[names] += right
                        self._count[names] += count
                else:
                    rows = part.rows().flatten(0, 1).double()
                    self._exact[names] += rows.mT @ rows if rows.shape[1] <= EXACT else rows.square().sum(0)

    def result(self) -> Held:
        """The blocks, in order of first use."""
        blocks = tuple(self._block(names) for names in self._index)
        return Held(BlockDiagonal(blocks, tuple(self._index.values())), tuple(self._index))

    def _block(self, names: tuple[str, ...]) -> Structured:
        if names in self._left:
            return Kronecker(self._left[names], self._right[names], 1.0 / max(self._count[names], 1))
        exact = self._exact[names]
        return Dense(exact) if exact.ndim == 2 else Diagonal(exact)


def separated(factor: Factor) -> tuple[Factor, ...]:
    """A factor whose bias has a block of its own."""
    if isinstance(factor, Outer) and factor.weight is not None and factor.bias is not None:
        return replace(factor, bias=None), replace(factor, weight=None)
    return (factor,)


def block_index(factor: Factor, network: Network) -> Int[Tensor, " d"]:
    """Where the entries of a factor's block lie in the flat vector, in the order in which its operator sees them."""
    flat = network.part(factor.names, torch.arange(network.layout.size))
    if isinstance(factor, Outer):
        flat = factor.matrix(flat)
    elif isinstance(factor, Lookup):
        flat = flat.view(factor.shape).mT
    return flat.flatten().to(network.like.device)


def gradient_moment(factor: Outer | Lookup, sharing: Sharing) -> Float[Tensor, "*p o o"]:
    """Second moment of the gradients of one layer, added up in float64."""
    if isinstance(factor, Lookup):
        g = factor.uses[2].flatten(0, 1).double()
        return g.mT @ g
    if sharing == "reduce":
        g = factor.g.double().sum(-1)
        return torch.einsum("nkpo,nkpq->poq", g, g)
    g = factor.g if factor.g.stride(0) >= factor.g.stride(1) else factor.g.transpose(0, 1)  # as it lies in memory
    return sum_outer(g.flatten(0, 1).double())


def input_moment(factor: Outer | Lookup, sharing: Sharing) -> tuple[Tensor, int]:
    """Second moment of the inputs of one layer, added up, and over how many inputs; for embeddings its diagonal."""
    if isinstance(factor, Lookup):
        row = factor.uses[1]
        return torch.bincount(row, minlength=factor.shape[0]).double(), len(row)
    n, t, wide = len(factor.g), factor.positions, replace(factor, a=factor.a.double())
    if sharing == "reduce":
        a = wide.columns.mean(-1)
        return torch.einsum("npi,npj->pij", a, a), n
    if wide.weight is not None and wide.options is not None and slides(wide.a, wide.options):
        return autocorrelation(wide.a, wide.options, int(wide.bias is not None)), n * t
    return sum_outer(wide.columns), n * t


def sum_outer(x: Float[Tensor, "n p i t"]) -> Float[Tensor, "p i i"]:
    """``sum_nt x xᵀ`` for each group: one product, or one an example where a copy in one piece would be larger."""
    if x.shape[2] < x.shape[3] and x.stride(0) > x.stride(2):
        return (x @ x.mT).sum(0)
    flat = x.permute(1, 2, 0, 3).flatten(2)
    return flat @ flat.mT
