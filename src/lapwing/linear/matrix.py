"""A linear model whose features are at hand: linear regression."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data import Batch, Data, Inputs
from lapwing.ground.tree import Layout
from lapwing.likelihoods import Gaussian, Likelihood
from lapwing.linear.model import Chunk, Directions


@final
@dataclass(frozen=True, eq=False)
class Matrix:
    """``h(w, x) = X w`` with the rows X of each example, and targets; a ``LinearModel``.

    Args:
        features: X of all examples, ``[n, d]`` for one output, else ``[n, *event, c, d]``.
        targets: Canonical targets; ``None`` for 0, where only the curvature matters.
        likelihood: Whose output Hessian is B.
        at_weights: w̃; ``None`` for 0.
        examples: Examples to a chunk.

    Example:
        >>> model = Matrix(torch.tensor([[1.0, 1.0], [0.0, 2.0]]))
        >>> model.diagonal().tolist(), [chunk.examples for chunk in model.visit()]
        ([1.0, 5.0], [2])
    """

    features: Float[Tensor, "n *shape d"]
    targets: Tensor | None = None
    likelihood: Likelihood = field(default_factory=Gaussian)
    at_weights: Float[Tensor, " d"] | None = None
    examples: int = 64

    @property
    def weights(self) -> Float[Tensor, " d"]:
        """w̃."""
        return self._rows.new_zeros(self._rows.shape[-1]) if self.at_weights is None else self.at_weights

    @property
    def layout(self) -> Layout:
        """One parameter."""
        return Layout(("weights",), ((len(self.weights),),))

    @property
    def event(self) -> torch.Size:
        """Shape of the outputs of one example."""
        return self._rows.shape[1:-1]

    @property
    def data(self) -> Data:
        """Features and targets, chunk by chunk."""
        return self._data

    @cached_property
    def _data(self) -> Data:
        targets = self._rows.new_zeros(self._rows.shape[:-1]) if self.targets is None else self.targets
        return Data(list(zip(self._rows.split(self.examples), targets.split(self.examples), strict=True)))

    def visit(self, columns: int = 1) -> Iterator[Chunk]:
        """See ``LinearModel.visit``."""
        return (self._chunk(batch) for batch in self.data)

    def held(self, columns: int = 1) -> bool:
        """They are."""
        return True

    def at(self, inputs: Inputs) -> Chunk:
        """The model at other features."""
        return self._chunk(Batch(inputs, self.weights.new_empty(0)))

    def rows(self, inputs: Inputs, directions: Directions) -> Iterator[Float[Tensor, "n k d"]]:
        """See ``LinearModel.rows``."""
        rows = cast("Tensor", inputs)
        for cotangents in directions(rows @ self.weights, slice(0, len(rows))):
            yield torch.einsum("kne,ned->nkd", cotangents.flatten(2), rows.flatten(1, -2))

    def diagonal(self) -> Float[Tensor, " d"]:
        """``diag(Xᵀ B X)``."""
        total = torch.zeros_like(self.weights)
        for chunk in self.visit():
            root = self.likelihood.root(chunk.outputs, chunk.targets)
            total += (root.mT @ cast("Tensor", chunk.inputs)).square().flatten(0, -2).sum(0)
        return total

    def check(self) -> None:
        """There is nothing that could change unseen."""

    @cached_property
    def _rows(self) -> Float[Tensor, "n *event_c d"]:
        return self.features if self.features.ndim > 2 else self.features[:, None]

    def _chunk(self, batch: Batch) -> Chunk:
        rows = cast("Tensor", batch.inputs)
        f = rows @ self.weights
        y = self.likelihood.canonical_targets(f, batch.targets) if len(batch.targets) else batch.targets

        def push(block: Float[Tensor, "d k"]) -> Float[Tensor, "k n *event c"]:
            flat = rows.flatten(0, -2)  # one product, not one for each example; few columns are far faster in front
            return (block.mT.contiguous() @ flat.mT).unflatten(1, rows.shape[:-1])

        def pull(block: Float[Tensor, "k n *event c"]) -> Float[Tensor, "d k"]:
            return (block.flatten(1) @ rows.flatten(0, -2)).mT

        return Chunk(rows, f, y, push, pull, max(1, 2**20 // rows[..., 0].numel()), None)
