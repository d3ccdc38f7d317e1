"""Tri-diagonal KFAC: what neighbouring layers have in common, beside the Kronecker product of each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.kfac import KroneckerSum
from lapwing.curvature.last_layer.outputs import Entries
from lapwing.curvature.second_moments import Share
from lapwing.ground.data.sources import Data
from lapwing.ground.precision import wide
from lapwing.jacobian.layers.base import Factor
from lapwing.jacobian.layers.linear import OuterProducts
from lapwing.jacobian.network.network import Network
from lapwing.linalg import BlockDiagonal
from lapwing.linalg.operators.chain import KroneckerChain, Link

Names = tuple[str, ...]


class ChainSum:
    """Adds up KFAC, and for neighbouring layers ``Σ g_l g_{l+1}ᵀ`` and ``Σ a_l a_{l+1}ᵀ / n``.

    Layers are neighbours in the order of their first use. They are tied where each has one position and no groups, as
    linear layers behind each other have, of every example; others stand alone, as norms do.

    Args:
        network: The network whose weights are uncertain.
        order: Parameters of each layer, in the order of their first use.
        factors: Adds up KFAC, biases within their layers.
    """

    floats = 0
    at_once = 1
    by_factors = True
    """Whether the Jacobian of a layer with several positions is not written down."""

    def __init__(self, network: Network, order: tuple[Names, ...], factors: KroneckerSum) -> None:
        self._network = network
        self._order = order
        self._factors = factors
        self._gradients: dict[tuple[Names, Names], Tensor] = {}
        self._inputs: dict[tuple[Names, Names], Tensor] = {}
        self._untied: set[tuple[Names, Names]] = set()
        """Neighbours that had several positions somewhere, as with sequences of other lengths."""
        self._count = 0
        """Examples whose inputs were added up."""

    def add(self, factors: Iterator[Factor], *, again: bool = False, share: Share | None = None) -> None:
        """Take in the factors of one block of cotangents of one chunk; its inputs only with the first block."""
        each = list(factors)
        self._factors.add(iter(each), again=again, share=share)
        single = {part.names: part for part in each if isinstance(part, OuterProducts) and has_one_position(part)}
        if not again and each:
            self._count += len(next(iter(single.values())).a) if single else 0
        for pair in pairwise(self._order):
            if pair[0] in single and pair[1] in single:
                self._add_pair(pair, single[pair[0]], single[pair[1]], again)
            else:
                self._untied.add(pair)

    def _add_pair(self, pair: tuple[Names, Names], one: OuterProducts, other: OuterProducts, again: bool) -> None:
        """What two layers have in common."""
        gradients = wide(one.g.flatten(2).flatten(0, 1)).mT @ wide(other.g.flatten(2).flatten(0, 1))
        self._gradients[pair] = self._gradients.get(pair, torch.zeros_like(gradients)) + gradients
        if not again:
            inputs = wide(one.columns.flatten(1)).mT @ wide(other.columns.flatten(1))
            self._inputs[pair] = self._inputs.get(pair, torch.zeros_like(inputs)) + inputs

    def add_outputs(self, head: OuterProducts, entries: Entries) -> None:
        """Take in one chunk of a head, which has no neighbour; see ``DenseSum``."""
        self._factors.add_outputs(head, entries)

    def share(self, data: Data) -> None:
        """Add what other processes have; see ``DenseSum``."""
        self._factors.share(data)
        for pair in pairwise(self._order):
            if int(data.added(torch.tensor(int(pair in self._untied)))):
                self._untied.add(pair)
        for pair in self._tied:
            data.added(self._gradients[pair])
            data.added(self._inputs[pair])
        self._count = int(data.added(torch.tensor(self._count)))

    @property
    def _tied(self) -> list[tuple[Names, Names]]:
        """Neighbours with something in common, in order."""
        return [pair for pair in pairwise(self._order) if pair in self._gradients and pair not in self._untied]

    def result(self) -> BlockedCurvature:
        """The chain, layers first; the blocks alone where no two are tied."""
        held = self._factors.result()
        operator = held.operator
        assert isinstance(operator, BlockDiagonal) and operator.index is not None
        if not self._tied:
            return held
        known = dict(zip(held.partition, zip(operator.blocks, operator.index, strict=True), strict=True))
        layers = [names for names in self._order if names in known]
        order = [*layers, *(names for names in known if names not in layers)]
        blocks = tuple(known[names][0] for names in order)
        index = tuple(known[names][1] for names in order)
        links = tuple(self._link(pair) for pair in pairwise(order))
        return BlockedCurvature(KroneckerChain(blocks, links, index))

    def _link(self, pair: tuple[Names, Names]) -> Link | None:
        if pair not in self._tied:
            return None
        return Link(self._gradients[pair], self._inputs[pair] / max(self._count, 1))


def has_one_position(factor: OuterProducts) -> bool:
    """Whether a layer's Jacobian is ``g aᵀ`` for one gradient and one input an example."""
    return factor.positions == 1 and factor.g.shape[2] == 1
