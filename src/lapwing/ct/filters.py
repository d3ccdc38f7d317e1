"""A prior over filters whose taps are correlated, and the linear model in coordinates where it is white."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Data
from lapwing.ground.layout import Layout
from lapwing.likelihoods import Likelihood
from lapwing.linear.model import Chunk, Directions, LinearModel


@final
@dataclass(frozen=True, eq=False)
class MaternFilters:
    """``w = L u`` with standard normal u: filters of Matérn-1/2 correlation (Antorán 2024, section 7.2.3).

        cov(w_i, w_j) = exp(-|i - j| / ψ_k) / a_k

    between the taps i and j of one filter; the filters of one block of the network share (a_k, ψ_k), those of a single
    tap have no ψ. Differentiable in both.

    Args:
        layout: Names and shapes ``[out, in, *taps]`` of the filters; the first two words of a name are its block.
        precisions: a, of each block.
        lengths: ψ, of each block, in taps.

    Example:
        >>> layout = Layout(("up.0.weight", "up.1.weight"), ((2, 1, 3, 3), (1, 2, 1, 1)))
        >>> prior = MaternFilters(layout, torch.ones(2), torch.ones(2))
        >>> prior.blocks, prior.smooth, prior.forward(torch.ones(20, 1)).shape
        (('up.0', 'up.1'), (True, False), torch.Size([20, 1]))
    """

    layout: Layout
    precisions: Float[Tensor, " g"]
    lengths: Float[Tensor, " g"]

    @classmethod
    def of(cls, layout: Layout, precision: float, length: float, like: Tensor) -> MaternFilters:
        """The same (a, ψ) for all blocks."""
        whole = cls(layout, like.new_empty(0), like.new_empty(0))
        ones = like.new_ones(len(whole.blocks))
        return replace(whole, precisions=precision * ones, lengths=length * ones)

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks, in order."""
        return tuple(dict.fromkeys(_block(name) for name in self.layout.names))

    @property
    def smooth(self) -> tuple[bool, ...]:
        """Which blocks have a filter of more than one tap."""
        taps = {name: False for name in self.blocks}
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            taps[_block(name)] |= any(side > 1 for side in shape[2:])
        return tuple(taps.values())

    def forward(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        """``L U``."""
        return self._each(block, lambda root, taps: root @ taps)

    def adjoint(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        """``Lᵀ V``."""
        return self._each(block, lambda root, taps: root.mT @ taps)

    def inverse(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        """``L⁻¹ W``."""
        return self._each(block, lambda root, taps: torch.linalg.solve_triangular(root, taps, upper=False))

    def member(self) -> Float[Tensor, "d g"]:
        """1 where a weight is of a block."""
        found = self.precisions.new_zeros(self.layout.size, len(self.blocks))
        for name, place in self.layout.slices.items():
            found[place, self.blocks.index(_block(name))] = 1.0
        return found

    def _each(self, block: Float[Tensor, "d k"], product: Callable[[Tensor, Tensor], Tensor]) -> Float[Tensor, "d k"]:
        found = list[Tensor]()
        for root, place in zip(self._roots, self.layout.slices.values(), strict=True):
            found.append(product(root.to(block), block[place].unflatten(0, (-1, len(root)))).flatten(0, 1))
        return torch.cat(found)

    @cached_property
    def _roots(self) -> list[Tensor]:
        """L of one filter of each parameter, float64."""
        found = list[Tensor]()
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            k = self.blocks.index(_block(name))
            taps = torch.ones(shape[2:]).nonzero().to(self.lengths)
            root = torch.linalg.cholesky(torch.exp(-torch.cdist(taps, taps) / self.lengths[k]))
            found.append(root / self.precisions[k].sqrt())
        return found


def _block(name: str) -> str:
    return ".".join(name.split(".")[:-1][:2])


@final
@dataclass(frozen=True, eq=False)
class Filtered:
    """A linear model of an image in coordinates u in which a prior over its filters is standard normal: J L.

    Args:
        image: The linear model in its weights w = L u.
        filters: The prior.
    """

    image: LinearModel
    filters: MaternFilters
    weights: Float[Tensor, " d"] = field(init=False, repr=False)
    """``L⁻¹ w̃``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", self.filters.inverse(self.image.weights[:, None])[:, 0])

    @property
    def likelihood(self) -> Likelihood:
        """That of the image."""
        return self.image.likelihood

    @property
    def data(self) -> Data:
        """One image."""
        return self.image.data

    @property
    def layout(self) -> Layout:
        """That of the image's model."""
        return self.image.layout

    @property
    def event(self) -> torch.Size:
        """Shape of the image."""
        return self.image.event

    def visit(self, columns: int = 1) -> Iterator[Chunk]:
        """See ``LinearModel.visit``."""
        return (self._chunk(chunk) for chunk in self.image.visit(columns))

    def is_cached(self, columns: int = 1) -> bool:
        """Where that of the image is."""
        return self.image.is_cached(columns)

    def on(self, inputs: Inputs) -> Chunk:
        """See ``LinearModel.on``."""
        return self._chunk(self.image.on(inputs))

    def rows(self, inputs: Inputs, directions: Directions) -> Iterator[Float[Tensor, "n k d"]]:
        """See ``LinearModel.rows``."""
        for rows in self.image.rows(inputs, directions):
            yield self.filters.adjoint(rows.flatten(0, 1).mT).mT.unflatten(0, rows.shape[:2])

    def diagonal(self) -> Float[Tensor, " d"]:
        """``diag(Lᵀ Jᵀ B J L)``, a backward pass an output."""
        found = torch.zeros_like(self.weights)
        for chunk in self.visit():
            b = self.likelihood.hessian(chunk.outputs, chunk.targets).diagonal(dim1=-2, dim2=-1).flatten()
            for block in torch.diag(b.sqrt()).split(chunk.width):
                found += chunk.pull(block.view(-1, *chunk.outputs.shape)).square().sum(1)
        return found

    def check(self) -> None:
        """See ``LinearModel.check``."""
        self.image.check()

    def _chunk(self, chunk: Chunk) -> Chunk:
        forward = self.filters.forward
        adjoint = self.filters.adjoint
        return replace(chunk, push=lambda v: chunk.push(forward(v)), pull=lambda u: adjoint(chunk.pull(u)))
