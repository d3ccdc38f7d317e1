"""The Jacobian of a chunk, layer by layer, for products with many columns, or with few many times."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.jacobian.layers.factors import Rows
from lapwing.jacobian.layers.layers import Pass
from lapwing.jacobian.layers.parts import Part, part_of
from lapwing.jacobian.network.loose import loose_rows
from lapwing.jacobian.network.network import Network

COLUMNS = 64
"""Most columns at once where products pass through layer factors."""


@final
@dataclass(frozen=True, eq=False)
class Layerwise:
    """``R = [u_nkᵀ J_n]``: the Jacobian of a chunk of n examples under k cotangents u, in parts.

    Args:
        network: The network.
        examples: Examples n.
        parts: One part a layer, then those of parameters without layer factors.

    Cost:
        To build: one forward pass and k backward passes. A product: see ``parts``.
    """

    network: Network
    examples: int
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, forward: Pass, cotangents: Float[Tensor, "k n ..."]) -> Layerwise:
        """The parts of a forward pass under cotangents of what the network returns."""
        factors = forward.layer_factors(cotangents)
        parts: list[Part] = []
        while factors:
            parts.append(part_of(factors.pop(0)))
        survey = forward.survey
        loose = loose_rows(forward.network, survey.loose, forward.inputs, cotangents, survey.way)
        parts += [part_of(Rows((name,), rows)) for name, rows in loose.items()]
        return cls(forward.network, len(forward.outputs), tuple(parts))

    @property
    def bytes(self) -> int:
        """Bytes the parts occupy."""
        return sum(tensor.numel() * tensor.element_size() for part in self.parts for tensor in part.held)

    def push(self, block: Float[Tensor, "d c"]) -> Float[Tensor, "n k c"]:
        """``R V``."""
        full = spread(self.network, block)
        return torch.cat([self._push(columns) for columns in full.split(COLUMNS, dim=1)], dim=-1)

    def pull(self, block: Float[Tensor, "n k c"]) -> Float[Tensor, "d c"]:
        """``Rᵀ U``."""
        pulled = torch.cat([self._pull(columns) for columns in block.split(COLUMNS, dim=-1)], dim=-1)
        return pulled if self.network.index is None else pulled[self.network.index]

    def _push(self, block: Tensor) -> Tensor:
        pieces = (part.push(self._own(part, block)) for part in self.parts)
        total = next(pieces)
        for piece in pieces:
            total += piece
        return total

    def _pull(self, block: Tensor) -> Tensor:
        pulled = {part.names: part.pull(block) for part in self.parts}
        values: dict[str, Tensor] = {}
        for names, value in pulled.items():
            sizes = [self.network.params[name].numel() for name in names]
            values.update(zip(names, value.split(sizes), strict=True))
        return torch.cat([values[name] for name in self.network.names])

    def _own(self, part: Part, block: Tensor) -> Tensor:
        """The rows of a block that belong to a part."""
        slices = [self.network.layout.slices[name] for name in part.names]
        if all(before.stop == after.start for before, after in pairwise(slices)):
            return block[slices[0].start : slices[-1].stop]
        return torch.cat([block[place] for place in slices])


def spread(network: Network, block: Float[Tensor, "d c"]) -> Float[Tensor, "all c"]:
    """A block over the uncertain weights as one over all weights of their parameters, zero elsewhere."""
    if network.index is None:
        return block
    return block.new_zeros(network.layout.size, block.shape[1]).index_copy_(0, network.index, block)
