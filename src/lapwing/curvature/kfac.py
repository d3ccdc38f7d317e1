"""KFAC: a Kronecker product for each layer, from second moments of what comes in and of what is pulled back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.last_layer.outputs import TOGETHER, Entries, OutputSum
from lapwing.curvature.second_moments import MomentSum, Share, decompose_all, decompose_dealt
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import ConfigError
from lapwing.ground.precision import DOUBLE, Precision
from lapwing.jacobian.layers.base import Factor
from lapwing.jacobian.layers.linear import OuterProducts
from lapwing.jacobian.layers.moments import RowMoment, Sharing
from lapwing.jacobian.network.network import Network
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, Kronecker, Structured

Bias: TypeAlias = Literal["joint", "separate"]

EXACT = 1024
"""Largest block of a parameter without Kronecker structure that is kept exact; beyond it only the diagonal is."""

Damping: TypeAlias = Literal["exact", "factored"]
"""How a prior precision is added to a Kronecker product."""

Names: TypeAlias = tuple[str, ...]
"""The parameters of a block."""


class KroneckerSum:
    """Adds up KFAC: a block ``G ⊗ A`` for each linear map, convolution and embedding, an exact block for each norm.

    With n examples and t positions that share the weight, *expand* takes every position for an example of its own,
    ``G = sum_ntk g gᵀ, A = sum_nt a aᵀ / (n t)``; *reduce* averages the inputs and adds up the gradients over the
    positions first (Martens & Grosse 2015, section 3; Eschenhagen et al. 2023, equations 14 and 22). An embedding
    always expands: its A is then diagonal, the frequency of each row. A table that is a linear layer too, as the head
    of a language model, has its exact block, or beyond ``exact`` rows the diagonal of it: of both uses, and of what
    they have in common. All is added up in float64, as in ``DenseSum``.

    Args:
        network: The network whose weights are uncertain.
        sharing: How positions that share a weight are treated.
        bias: Whether a bias is a last input of its weight's block, or has a block of its own.
        rank: Eigenpairs kept of a factor with ``LARGE`` times as many rows or more; ``None`` keeps all of all.
        precision: In what products are made.
        exact: Rows of the largest block without Kronecker structure that is kept; of larger ones the diagonal is.
        together: See ``OutputSum``.
        damping: How a prior precision will be added to the products.

    Raises:
        ConfigError: If only single entries of a parameter are uncertain.
    """

    floats = 0
    at_once = 1
    by_factors = True
    """Whether the Jacobian of a layer with several positions is not written down."""

    def __init__(
        self,
        network: Network,
        sharing: Sharing = "expand",
        bias: Bias = "joint",
        rank: int | None = None,
        precision: Precision = DOUBLE,
        exact: int = EXACT,
        together: int = TOGETHER,
        damping: Damping = "exact",
    ) -> None:
        if network.index is not None:
            raise ConfigError(
                "whole parameters to be uncertain for KFAC",
                "a subnetwork of single weights",
                "structure Full or Diagonal, or weights=Names(...)",
            )
        self._network = network
        self._sharing: Sharing = sharing
        self._bias = bias
        self._rank = rank
        self._precision = precision
        self._largest = exact
        self._together = together
        self._damping: Damping = damping
        self._index: dict[Names, Tensor] = {}
        self._gradients: dict[Names, MomentSum] = {}
        """``sum g gᵀ`` of each block."""
        self._inputs: dict[Names, MomentSum] = {}
        """``sum a aᵀ``, and over how many a."""
        self._count: Counter[Names] = Counter()
        self._exact: dict[Names, MomentSum] = {}
        """``sum Jᵀ J`` of each block that is no Kronecker product."""
        self._outputs: OutputSum | None = None
        """``sum B``, which stands for the gradients where one layer makes the outputs."""

    def add(self, factors: Iterator[Factor], *, again: bool = False, share: Share | None = None) -> None:
        """Take in the factors of one block of cotangents of one chunk; its inputs only with the first block."""
        of_examples = None if share is None else share.examples
        of_cotangents = None if share is None else share.cotangents
        for part in self._parts(factors):
            gradients = part.gradient_moment(self._sharing, self._precision)
            if gradients is None:
                self._add_without_product(part, of_cotangents)
                continue
            self._gradients.setdefault(part.names, self._sum(self._rank)).add(gradients, of_cotangents)
            if not again:
                self._add_inputs(part, of_examples)

    def _add_without_product(self, factor: Factor, share: float | None) -> None:
        """Take in ``Jᵀ J`` of a block that is no Kronecker product, or beyond so many weights its diagonal."""
        total = self._exact.setdefault(factor.names, self._sum(None))
        if len(self._index[factor.names]) > self._largest:
            total.add_total(factor.wide_square_sum())
        else:
            total.add(RowMoment(factor.rows().flatten(0, 1), precision=self._precision), share)

    def add_outputs(self, head: OuterProducts, entries: Entries) -> None:
        """Take in one chunk of a head, whose gradient is the identity; see ``DenseSum``."""
        if self._outputs is None:
            self._outputs = OutputSum(self._precision, self._together)
        self._outputs.add(entries)
        for part in self._parts([head]):
            self._add_inputs(part)

    def _parts(self, factors: Iterable[Factor]) -> Iterator[Factor]:
        """Factors with a block of their own, whose place is known from then on."""
        for factor in factors:
            for part in factor.separated() if self._bias == "separate" else (factor,):
                if part.names not in self._index:
                    self._index[part.names] = block_index(part, self._network)
                yield part

    def _add_inputs(self, factor: Factor, share: float | None = None) -> None:
        """Take in the inputs of one layer, and how many."""
        inputs = factor.input_moment(self._sharing, self._precision)
        assert inputs is not None
        self._inputs.setdefault(factor.names, self._sum(self._rank)).add(inputs, share)
        self._count[factor.names] += inputs.count

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

    def _sum(self, rank: int | None) -> MomentSum:
        return MomentSum(rank, self._precision.epsilon)

    @property
    def cut(self) -> bool:
        """Whether a factor is held by its leading eigenpairs."""
        return any(moment.cut for moment in self._moments)

    @property
    def _moments(self) -> tuple[MomentSum, ...]:
        return (*self._gradients.values(), *self._inputs.values(), *self._exact.values())

    def result(self) -> BlockedCurvature:
        """The blocks, in order of first use, their factors decomposed."""
        decompose_all(self._moments)
        partition: list[Names] = []
        blocks: list[Structured] = []
        places: list[Tensor] = []
        for names in self._index:
            for block, place in self._blocks(names):
                partition.append(names)
                blocks.append(block)
                places.append(place)
        operator = BlockDiagonal(tuple(blocks), tuple(places))
        if self._damping == "factored":
            operator = operator.damped_by_factors()
        return BlockedCurvature(operator, tuple(partition))

    def _blocks(self, names: Names) -> Iterator[tuple[Structured, Tensor]]:
        """The blocks of some parameters, most often one, and their places in the flat vector."""
        index = self._index[names]
        if self._outputs is not None:
            yield from self._outputs.blocks(self._inputs[names].decomposed, self._count[names], index)
        elif names in self._gradients:
            mean = 1.0 / max(self._count[names], 1)
            yield Kronecker(self._gradients[names].decomposed, self._inputs[names].decomposed, mean), index
        else:
            exact = self._exact[names].decomposed
            yield Diagonal(exact) if isinstance(exact, Tensor) else Dense(exact.matrix, basis=exact), index


def block_index(factor: Factor, network: Network) -> Int[Tensor, " d"]:
    """Where the entries of a factor's block lie in the flat vector, in the order in which its operator sees them."""
    places = [network.layout.slices[name] for name in factor.names]
    flat = torch.cat([torch.arange(place.start, place.stop) for place in places])
    return factor.matrix(flat).flatten().to(network.like.device)
