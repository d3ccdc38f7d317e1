"""The network made linear in its weights over a data set, chunk by chunk, in the form that suits the columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, chunks, count
from lapwing.ground.data.sources import Data
from lapwing.ground.layout import Layout, together
from lapwing.jacobian.layers.factors import Factor, jacobian_rows, square_sums
from lapwing.jacobian.model import BUDGET, Model
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.forms import MEMORY, WORKING, Form, Prepare, Store, Work
from lapwing.jacobian.products.plain import Columnwise, differentiated
from lapwing.jacobian.products.recording import Recording, linearised, recorded
from lapwing.likelihoods import Likelihood
from lapwing.likelihoods.base import COLUMNS, by_position
from lapwing.linalg.checks import finite
from lapwing.linear.model import Chunk, Directions


@final
@dataclass(frozen=True, eq=False)
class Linearisation:
    """A network made linear in its weights: a ``LinearModel``, with what is kept of it from pass to pass.

    Three forms of one product, chosen for each block of columns by ``forms.Work``: *layers* holds J of a chunk of
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
        jacobian, f = BatchJacobian(self.model, inputs, keep=keep), self.model.outputs(inputs)
        return Chunk(inputs, f, f.new_empty(0), jacobian.push, jacobian.pull, COLUMNS)

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
        wide = torch.promote_types(network.like.dtype, torch.float32)
        total = torch.zeros(network.size, dtype=wide, device=network.like.device)
        for batch in self.data:
            for place, inputs in chunks(batch.inputs, self._size()):
                forward = self.model.forward(inputs)
                f = forward.outputs
                root = likelihood.thin_root(f, likelihood.canonical_targets(f, batch.targets[place]))
                for cotangents in by_position(root.movedim(-1, 0)):
                    total += square_sums(network, forward.factors(cotangents))
        return finite(self.data.added(total).to(network.like.dtype))

    def _size(self, extra: int = 0) -> int:
        """Examples whose roots, and rows under them with ``extra`` numbers a cotangent, fit the budget."""
        c = self.event[-1]
        return self.model.chunk(min(c, COLUMNS), BUDGET, extra, 3 * self.model.width * c)

    def choose(self, columns: int) -> Form:
        """The form of a product with a block of so many columns."""
        if self.form is not None:
            return self.form
        examples, kept, numbers = self.model.data.examples, self.store.kept, self.store.room // self._itemsize
        form = self.work.choose(columns, numbers, examples)
        beside = self.store.bytes // self._itemsize + self.work.size(form) * examples
        if not kept or form in kept or beside <= numbers:
            return form
        known = next(iter(kept))  # the other would push it out, to be made for this product alone
        apart = self.work.cost(form, columns, kept=False)
        return known if self.work.cost(known, columns, kept=True) <= apart else form

    def visit(self, columns: int = 1) -> Iterator[Chunk]:
        """Every chunk of the data, in their order; by so many columns the form is chosen."""
        self.model.network.check_unchanged()
        form, store = self.choose(columns), self.store
        if form == "layers" and self.work.layers.held * self.model.data.examples * self._itemsize > store.room:
            store.too_large.add(form)
        return store.visit(form, self.model.data, *self.executors[form])

    def is_cached(self, columns: int = 1) -> bool:
        """Whether all chunks are kept in the form that so many columns take."""
        return self.choose(columns) in self.store.kept

    @property
    def _itemsize(self) -> int:
        return self.model.network.like.element_size()

    @cached_property
    def store(self) -> Store[Chunk]:
        """What is kept of the data between products."""
        return Store[Chunk](self.memory)

    @cached_property
    def work(self) -> Work:
        """What one example takes."""
        return Work(self.model, self.model.data.first(), self.likelihood.root_columns(self.event))

    @cached_property
    def executors(self) -> dict[Form, tuple[int, Prepare[Chunk]]]:
        """Examples to a chunk in each form, and what prepares one."""
        work, working = self.work, self.memory // WORKING
        room = work.chunk(self._itemsize, min(BUDGET, working))
        plain = partial(differentiated, self.model, room)
        extra = -(-work.layers.held // work.cotangents)
        split = Recording(self.model, linearised(self.model.network))
        return {
            "layers": (
                self.model.chunk(work.cotangents, min(BUDGET, working), extra),
                lambda batch: layered(self.model, batch.inputs, batch.targets),
            ),
            "split": (work.chunk(self._itemsize, working), partial(recorded, split, plain)),
            "plain": (room, plain),
        }


@final
@dataclass(frozen=True, eq=False)
class BatchJacobian:
    """The Jacobian of one batch: explicit rows where there are as many columns and they fit, else column by column.

    Args:
        model: The network and its likelihood.
        inputs: The n examples of the batch.
        budget: Bytes for explicit rows.
        keep: Whether rows, once made, are kept for further products.
    """

    model: Model
    inputs: Inputs
    budget: int = BUDGET
    keep: bool = False

    def push(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "k n *event c"]:
        """``J V``: a change of the outputs for each change of the weights."""
        if not self._by_rows(block.shape[1]):
            return self._columns.push(block)
        return torch.cat([rows.push(block) for rows in self._rows()], dim=1)

    def pull(self, block: Float[Tensor, "k n *event c"]) -> Float[Tensor, "d k"]:
        """``Jᵀ U``: a change of the weights for each change of the outputs."""
        if not self._by_rows(len(block)):
            return self._columns.pull(block)
        total, start = block.new_zeros(self.model.network.size, len(block)), 0
        for rows in self._rows():
            total += rows.pull(block[:, start : start + rows.examples])
            start += rows.examples
        return total

    @cached_property
    def _columns(self) -> Columnwise:
        """As many columns at once as fit the budget with all examples."""
        each = self.model.survey.bytes(1, self.model.network.like.element_size()) * count(self.inputs)
        return Columnwise(self.model, self.inputs, max(1, min(COLUMNS, self.budget // each)))

    def _by_rows(self, columns: int) -> bool:
        outputs = self.model.width
        bytes_of_one = outputs * self.model.network.size * self.model.network.like.element_size()
        return "_kept" in vars(self) or (columns >= outputs and bytes_of_one <= self.budget)

    def _rows(self) -> Iterable[Chunk]:
        return self._kept if self.keep else self._made()

    @cached_property
    def _kept(self) -> list[Chunk]:
        return list(self._made())

    def _made(self) -> Iterator[Chunk]:
        size = self.model.chunk(self.model.width, self.budget, self.model.network.layout.size)
        return (layered(self.model, part)[0] for _, part in chunks(self.inputs, size))


def layered(model: Model, inputs: Inputs, targets: Tensor | None = None) -> tuple[Chunk, int]:
    """The rows ``R = Eᵀ J`` of some examples held layer by layer: a forward pass, and a backward pass a column of E.

    Args:
        model: The network and its likelihood.
        inputs: The examples.
        targets: With them, E has all changes of the outputs that the likelihood sees; without, all there are.

    Returns:
        The chunk, and the bytes that the rows occupy.
    """
    forward = model.forward(inputs)
    f = forward.outputs
    y, seen = f.new_empty(0), torch.eye(f.shape[-1], dtype=f.dtype, device=f.device)
    if targets is not None:
        y, seen = model.likelihood.canonical_targets(f, targets), model.likelihood.basis(f)
    columns = seen.mT.view(seen.shape[1], *(1,) * (f.ndim - 1), f.shape[-1]).expand(-1, *f.shape)
    blocks = list(by_position(columns))
    blocks = blocks if targets is not None else [torch.cat(blocks)]
    rows = [tuple(factor.for_products() for factor in forward.factors(cotangents)) for cotangents in blocks]

    def push(block: Float[Tensor, "d k"]) -> Float[Tensor, "k n *event c"]:
        moved = together((_pushed(model.network, factors, block) for factors in rows), 1).movedim(-1, 0)
        return moved.reshape(-1, *f.shape[:-1], seen.shape[1]) @ seen.mT

    def pull(block: Float[Tensor, "k n *event c"]) -> Float[Tensor, "d k"]:
        split = (block @ seen).flatten(2).movedim(0, -1).split([len(part) for part in blocks], dim=1)
        pieces = [_pulled(model.network, factors, piece) for factors, piece in zip(rows, split, strict=True)]
        return reduce(Tensor.add_, pieces)

    held = sum(tensor.nbytes for factors in rows for factor in factors for tensor in factor.held.values())
    return Chunk(inputs, f, y, push, pull, COLUMNS), held


def _pushed(network: Network, factors: tuple[Factor, ...], block: Float[Tensor, "d c"]) -> Float[Tensor, "n k c"]:
    """``R V``, layer by layer, for some columns at a time."""

    def push(columns: Tensor) -> Tensor:
        full = network.spread(columns)
        return reduce(Tensor.add_, (factor.push(network.part(factor.names, full)) for factor in factors))

    return together((push(columns) for columns in block.split(COLUMNS, dim=1)), -1)


def _pulled(network: Network, factors: tuple[Factor, ...], block: Float[Tensor, "n k c"]) -> Float[Tensor, "d c"]:
    """``Rᵀ U``, in the same way."""

    def pull(columns: Tensor) -> Tensor:
        return network.joined(((factor.names, factor.pull(columns)) for factor in factors), 0)

    return together((pull(columns) for columns in block.split(COLUMNS, dim=-1)), -1)
