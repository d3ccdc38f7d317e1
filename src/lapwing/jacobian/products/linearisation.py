"""The network made linear in its weights over a data set, chunk by chunk, by the strategy that suits the columns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, chunks
from lapwing.ground.data.sources import Batch, Data
from lapwing.ground.layout import Layout
from lapwing.ground.precision import Precision
from lapwing.ground.shared import fields_of
from lapwing.jacobian.layers.base import jacobian_rows, square_sums
from lapwing.jacobian.model import Model
from lapwing.jacobian.products.autodiff_jacobian import autodiff_chunk
from lapwing.jacobian.products.batch_jacobian import BatchJacobian
from lapwing.jacobian.products.cache import MEMORY, WORKING, Cache
from lapwing.jacobian.products.explicit_jacobian import explicit_chunk
from lapwing.jacobian.products.strategy import RECORDING, ExampleCost, Strategy
from lapwing.jacobian.products.tracing.traced_jacobian import jacobian_tracer, traced_chunk
from lapwing.jacobian.products.tracing.tracer import Tracer
from lapwing.likelihoods import Likelihood
from lapwing.likelihoods.base import COLUMNS, by_position
from lapwing.linalg.checks import finite
from lapwing.linear.model import Chunk, Directions


@final
@dataclass(frozen=True, eq=False)
class Linearisation:
    """A network made linear in its weights: a ``LinearModel``, with what is kept of it from pass to pass.

    Three strategies for one product, chosen for each block of columns by ``ExampleCost``: *explicit* holds J of a chunk
    of examples, layer by layer, and multiplies; *traced* records the product as a graph once a shape of batch and
    repeats only what depends on the column; *autodiff*, where tracing fails, pushes and pulls every column through the
    network.

    What does not depend on the columns is kept from product to product if it fits ``memory`` for all the data; then
    the data are read once. Two strategies are kept where both fit.

    Args:
        model: The network, its likelihood, and the data; these are read once a product, or once in all.
        memory: Bytes it may occupy, what it keeps included.
        strategy: Strategy to take whatever the rule says; ``None`` leaves it to the rule.
        recording: Multiplications in whose time a traced product is recorded, for the rule.
        precision: In what rows are multiplied; ``None`` for the type of the network. Takes the strategy *explicit*.
    """

    model: Model
    memory: int = MEMORY
    strategy: Strategy | None = None
    recording: int = RECORDING
    precision: Precision | None = None

    def in_precision(self, precision: Precision) -> Linearisation:
        """The same by explicit rows that are multiplied in a precision: those of the network, but sums of more digits.

        Args:
            precision: In what.
        """
        return replace(self, strategy="explicit", precision=precision)

    def __getstate__(self) -> dict[str, Any]:
        """What pickle and ``copy`` take: the fields; what was made of them since is made again."""
        return fields_of(self)

    @property
    def likelihood(self) -> Likelihood:
        """Of the model."""
        return self.model.likelihood

    @property
    def data(self) -> Data:
        """Those the network was trained on."""
        return self.model.data

    @property
    def weights(self) -> Float[Tensor, " d"]:
        """The trained values of the uncertain weights, of the type of the products."""
        return self._weights

    @property
    def layout(self) -> Layout:
        """Names of the uncertain weights."""
        return self.model.network.uncertain

    @property
    def event(self) -> torch.Size:
        """Shape of the canonical outputs of one example."""
        return self.model.event

    def check(self) -> None:
        """Raises a ``MismatchError`` when the network was written to since."""
        self.model.network.check_unchanged()

    def on(self, inputs: Inputs, *, keep: bool = False) -> Chunk:
        """The Jacobian at other inputs: a forward pass now, what a product takes at the first of its kind.

        Args:
            inputs: The inputs.
            keep: Whether explicit rows, once made, are kept for further products.
        """
        jacobian = BatchJacobian(self.model, inputs, keep=keep)
        f = self.model.outputs(inputs)
        return Chunk(inputs, f, f.new_empty(0), jacobian.push, jacobian.pull, COLUMNS)

    def rows(self, inputs: Inputs, directions: Directions) -> Iterator[Float[Tensor, "n k d"]]:
        """Explicit rows ``uᵀ J`` of some examples: a forward pass, and a backward pass a cotangent."""
        network = self.model.network
        for place, part in chunks(inputs, self._examples_by_factors(network.layout.size)):
            forward = self.model.forward(part)
            for cotangents in directions(forward.outputs, place):
                yield jacobian_rows(network, forward.factors(cotangents))

    def diagonal(self) -> Float[Tensor, " d"]:
        """``diag(Jᵀ B J)``, exact, from layer factors in one pass."""
        network = self.model.network
        wide = torch.promote_types(network.like.dtype, torch.float32)
        total = torch.zeros(network.size, dtype=wide, device=network.like.device)
        for batch in self.data:
            for place, inputs in chunks(batch.inputs, self._examples_by_factors()):
                forward = self.model.forward(inputs)
                f = forward.outputs
                y = self.likelihood.canonical_targets(f, batch.targets[place])
                root = self.likelihood.thin_root(f, y)
                for cotangents in by_position(root.movedim(-1, 0)):
                    total += square_sums(network, forward.factors(cotangents))
        return finite(self.data.added(total).to(network.like.dtype))

    def choose(self, columns: int) -> Strategy:
        """The strategy of a product with a block of so many columns."""
        if self.strategy is not None:
            return self.strategy
        examples = self.data.examples
        numbers = self.cache.room // self._itemsize
        cheaper = self.cost.cheaper(columns, numbers, examples, self.recording)
        cached = list(self.cache.chunks)
        if not cached or cheaper in cached:
            return cheaper
        beside = self.cache.bytes // self._itemsize + self.cost.numbers(cheaper) * examples
        if beside <= numbers:
            return cheaper
        # The cheaper one would push out what is at hand, and be made for this product alone.
        at_hand = cached[0]
        made_once = self.cost.of_product(cheaper, columns, cached=False)
        return at_hand if self.cost.of_product(at_hand, columns, cached=True) <= made_once else cheaper

    def visit(self, columns: int = 1) -> Iterator[Chunk]:
        """Every chunk of the data, in their order; by so many columns the strategy is chosen."""
        self.check()
        strategy = self.choose(columns)
        if strategy == "explicit" and self.cost.layers.held * self.data.examples * self._itemsize > self.cache.room:
            self.cache.too_large.add(strategy)
        return self.cache.visit(strategy, self.data, self.chunk_size(strategy), partial(self._prepared, strategy))

    def is_cached(self, columns: int = 1) -> bool:
        """Whether all chunks are kept for the strategy that so many columns take."""
        return self.choose(columns) in self.cache.chunks

    @property
    def fits(self) -> bool:
        """Whether the explicit rows of one example take no more than a quarter of the memory; see ``cheaper``."""
        return 4 * self.cost.layers.held * self._itemsize <= self.cache.room

    def chunk_size(self, strategy: Strategy) -> int:
        """Examples to a chunk, at most."""
        working = self.memory // WORKING
        budget = min(self.model.limits.training, working)
        if strategy == "explicit":
            numbers_a_cotangent = math.ceil(self.cost.layers.held / self.cost.cotangents)
            budget = budget * self.model.network.like.itemsize // self._itemsize
            return self.model.chunk(self.cost.cotangents, numbers_a_cotangent, budget=budget)
        if strategy == "traced":
            return self.cost.chunk(self._itemsize, working)
        return self.cost.chunk(self._itemsize, budget)

    @cached_property
    def cache(self) -> Cache[Chunk]:
        """What is kept of the data between products."""
        return Cache[Chunk](self.memory)

    @cached_property
    def cost(self) -> ExampleCost:
        """What one example takes."""
        return ExampleCost.of(self.model, self.data.first(), self.likelihood.root_columns(self.event))

    @cached_property
    def _weights(self) -> Float[Tensor, " d"]:
        weights = self.model.network.weights
        return weights if self.precision is None else self.precision.operand(weights)

    @cached_property
    def _tracer(self) -> Tracer:
        return jacobian_tracer(self.model)

    @property
    def _itemsize(self) -> int:
        return self.weights.element_size()

    def _prepared(self, strategy: Strategy, batch: Batch) -> tuple[Chunk, int | None]:
        """What does not depend on the columns, of a chunk, and the bytes that keeps."""
        if strategy == "explicit":
            return explicit_chunk(self.model, batch.inputs, batch.targets, self.precision)
        autodiff = partial(autodiff_chunk, self.model, self.chunk_size("autodiff"))
        if strategy == "traced":
            return traced_chunk(self._tracer, autodiff, batch)
        return autodiff(batch)

    def _examples_by_factors(self, extra: int = 0) -> int:
        """Examples whose roots, and rows under them with ``extra`` numbers a cotangent, fit the budget."""
        c = self.event[-1]
        return self.model.chunk(min(c, COLUMNS), extra, 3 * self.model.width * c)
