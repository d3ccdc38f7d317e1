"""The network made linear in its weights over a data set, chunk by chunk, in the form that suits the columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data import Data, chunks
from lapwing.ground.tree import Layout
from lapwing.ground.types import Inputs
from lapwing.jacobian.layers.factors import jacobian_rows, square_sums
from lapwing.jacobian.model import BUDGET, Model
from lapwing.jacobian.products.costs import Form, Work
from lapwing.jacobian.products.jacobian import BatchJacobian, Differentiated, Layered
from lapwing.jacobian.products.products import MEMORY, WORKING, Executor, Store
from lapwing.jacobian.products.recording import Recorded
from lapwing.likelihoods import Likelihood
from lapwing.likelihoods.base import COLUMNS, by_position
from lapwing.linalg.structured import finite
from lapwing.linear.model import Chunk, Directions, gathered, shuffled


@final
@dataclass(frozen=True, eq=False)
class Linearisation:
    """A network made linear in its weights: a ``LinearModel``, with what is kept of it from pass to pass.

    Three forms of one product, chosen for each block of columns by ``costs.Work``: *layers* holds J of a chunk of
    examples, layer by layer, and multiplies; *split* records the product as a graph once a shape of batch and repeats
    only what depends on the column; *plain*, where recording fails, pushes and pulls every column through the network.

    What does not depend on the columns is kept from product to product if it fits ``memory`` for all the data; then
    the data are read once. Two forms are kept where both fit.

    Args:
        model: The network, its likelihood, and the data; these are read once a product, or once in all.
        memory: Bytes it may occupy, what is kept included.
        form: Form to use whatever the rule says; ``None`` leaves it to the rule.
    """

    model: Model
    memory: int = MEMORY
    form: Form | None = None
    store: Store[Chunk] = field(default_factory=Store[Chunk], init=False, repr=False)

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
        """The trained values of the uncertain weights."""
        return self.model.network.weights

    @property
    def layout(self) -> Layout:
        """Names of the uncertain weights."""
        return self.model.network.uncertain

    @property
    def event(self) -> torch.Size:
        """Shape of the canonical outputs of one example."""
        return self.likelihood.canonical(torch.empty(1, *self.model.survey.output, device="meta")).shape[1:]

    def check(self) -> None:
        """Refuse to go on when the network was written to since.

        Raises:
            MismatchError: If a weight or buffer has changed.
        """
        self.model.network.check_unchanged()

    def at(self, inputs: Inputs) -> Chunk:
        """The Jacobian at other inputs: a forward pass now, what a product takes at the first of its kind."""
        jacobian = BatchJacobian(self.model, inputs)
        with torch.no_grad():
            f = self.likelihood.canonical(self.model.network(inputs))

        def push(block: Float[Tensor, "d k"]) -> Float[Tensor, "k n *event c"]:
            return jacobian.push(block).mT.reshape(-1, *f.shape)

        def pull(block: Float[Tensor, "k n *event c"]) -> Float[Tensor, "d k"]:
            return jacobian.pull(block.flatten(1).mT)

        return Chunk(inputs, f, f.new_empty(0), push, pull, COLUMNS, None)

    def rows(self, inputs: Inputs, directions: Directions) -> Iterator[Float[Tensor, "n k d"]]:
        """Explicit rows ``uᵀ J`` of some examples: a forward pass, and a backward pass a cotangent."""
        network = self.model.network
        for place, part in chunks(inputs, self._size(network.layout.size)):
            forward = self.model.forward(part)
            for cotangents in directions(forward.outputs, place):
                yield jacobian_rows(network, forward.factors(cotangents))

    def diagonal(self) -> Float[Tensor, " d"]:
        """``diag(Jᵀ B J)``, exact, from layer factors in one pass."""
        network, likelihood = self.model.network, self.likelihood
        total = network.like.new_zeros(network.size)
        for batch in self.data:
            for place, inputs in chunks(batch.inputs, self._size()):
                forward = self.model.forward(inputs)
                f = forward.outputs
                root = likelihood.root(f, likelihood.canonical_targets(f, batch.targets[place]))
                for cotangents in by_position(root.movedim(-1, 0), f.ndim - 2):
                    total += square_sums(network, forward.factors(cotangents))
        return finite(total)

    def _size(self, extra: int = 0) -> int:
        """Examples whose roots, and rows under them with ``extra`` numbers a cotangent, fit the budget."""
        c = self.event[-1]
        return self.model.chunk(min(c, COLUMNS), BUDGET, extra, 3 * self.model.width * c)

    def choose(self, columns: int) -> Form:
        """The form of a product with a block of so many columns."""
        if self.form is not None:
            return self.form
        examples = self.model.data.examples
        form, kept = self.work.choose(columns, self._room, examples), self.store.kept
        beside = self.store.bytes // self.model.network.like.element_size() + self.work.size(form) * examples
        if not kept or form in kept or beside <= self._room:
            return form
        known = next(iter(kept))  # the other would push it out, to be made for this product alone
        apart = self.work.cost(form, columns, kept=False)
        return known if self.work.cost(known, columns, kept=True) <= apart else form

    def visit(self, columns: int = 1) -> Iterator[Chunk]:
        """Every chunk of the data, in their order; by so many columns the form is chosen."""
        self.model.network.check_unchanged(values=False)
        form, store = self.choose(columns), self.store
        if form == "layers" and self.work.kept[0] * self.model.data.examples > self._room:
            store.too_large.add(form)
        return store.visit(self.executors[form], self.model.data, self.memory)

    def batches(
        self, columns: int = 1, *, batch: int = 1, generator: torch.Generator | None = None
    ) -> Iterator[Iterator[Chunk]]:
        """The chunks in mini-batches of at least so many examples, but for the last: the same ones in every pass.

        Args:
            columns: Columns of the blocks to come, by which the form is chosen.
            batch: Examples to a mini-batch.
            generator: Shuffles them, where all chunks are kept; else, or without one, they come as the data do.
        """
        if generator is None or self.store.chunks(self.choose(columns)) is None:
            return gathered(self.visit(columns), batch)
        return shuffled(self.visit(columns), batch, generator=generator)

    def prepare(self, columns: int = 1) -> None:
        """Do now what can be done before the first product with so many columns, and be kept."""
        form = self.choose(columns)
        for _ in self.visit(columns):
            if form in self.store.too_large:
                return

    @property
    def _room(self) -> int:
        """Numbers there is room to keep."""
        return (self.memory - self.memory // WORKING) // self.model.network.like.element_size()

    @cached_property
    def work(self) -> Work:
        """What one example takes."""
        f = self.model.likelihood.canonical(torch.zeros(1, *self.model.survey.output))
        columns = self.model.likelihood.thin_root(f)[..., 0, :].numel()
        return Work.of(self.model, self.model.data.first(), columns)

    @cached_property
    def executors(self) -> dict[Form, Executor[Chunk]]:
        """What prepares a chunk in each form."""
        work, itemsize = self.work, self.model.network.like.element_size()
        working = self.memory // WORKING
        plain = Differentiated(self.model, work.chunk(itemsize, min(BUDGET, working)))
        extra = -(-work.kept[0] // work.cotangents)
        examples = self.model.chunk(work.cotangents, min(BUDGET, working), extra)
        return {
            "layers": Layered(self.model, examples),
            "split": Recorded(self.model, work.chunk(itemsize, working), plain),
            "plain": plain,
        }
