"""The forms of a product over the data: what each costs, and what is kept of the data from one product to the next.

Costs are in multiplications, from numbers known before a product is run. F is the work of a forward pass, counted once
on one example; a gradient is 3 F. With c cotangents and C columns, for one example:

- *split*: F for what does not depend on the column, and 4 F a column: a layer's own weights and its inputs, each
  forward and back; the first layer has no inputs that change.
- *layers*: ``LOSS`` (F + c F + the explicit rows) to build, and 2 multiplications a column for each entry of the rows
  (at least as much as ``STREAM`` columns take: below, memory is the limit) and for those of the factors.

What fits the memory given is kept from one product to the next. Its making is then charged to ``PRODUCTS`` products,
the least that a solver asks for; what does not fit is charged to every product.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar, final

import torch
from torch.utils.flop_counter import FlopCounterMode

from lapwing.ground.data.inputs import Inputs, chunks, take
from lapwing.ground.data.sources import Batch, Data
from lapwing.jacobian.layers.factors import Factor, Outer, Rows
from lapwing.jacobian.layers.lookup import Lookup
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network

logger = logging.getLogger(__name__)

Form = Literal["layers", "split", "plain"]
"""How a product is executed."""

PRODUCTS = 50
"""Products that what is kept is charged to."""

STREAM = 4
"""Columns below which a product with explicit rows takes the time of reading them."""

LOSS = 1.5
"""Time of many small backward passes and of explicit rows, over that of the same multiplications in large ones."""

TENSORS = 2
"""Tensors of the size of a layer's output that the split keeps for each layer."""

MEMORY = 2**31
"""Bytes a product may occupy, what it keeps included (2 GiB)."""

WORKING = 8
"""One in so many bytes of that is left for work in progress."""


@final
class Count(NamedTuple):
    """What layers take for one example, in multiplications and numbers.

    Args:
        building: To make explicit rows.
        rows: Entries of explicit rows.
        factors: A column by factors.
        held: Numbers that are kept.
        outputs: Numbers at the outputs of the layers.
        forward: Multiplications of a forward pass.
    """

    building: int
    rows: int
    factors: int
    held: int
    outputs: int
    forward: int


def count(factor: Factor, cotangents: int) -> Count:
    """What a layer takes.

    Args:
        factor: Its factor of one example and one cotangent.
        cotangents: Cotangents k there will be.
    """
    k = cotangents
    if isinstance(factor, Rows):
        entries = k * factor.g.shape[2]
        return Count(0, entries, 0, entries, 0, 0)
    if isinstance(factor, Lookup):
        uses, width = factor.index.shape[1], factor.shape[1]
        return Count(0, 0, k * uses * width, uses * (k * width + 4), uses * width, 0)
    assert isinstance(factor, Outer)
    _, _, p, o, t = factor.g.shape
    i = factor.width if factor.weight is not None else 1
    if factor.factored(k):
        return Count(0, 0, t * o * (i + k), t * (i + k * o), o * t, o * i * t)
    entries = k * p * o * (i + int(len(factor.names) > 1))
    return Count(entries * t, entries, 0, entries, p * o * t, p * o * i * t)


def multiplications(network: Network, inputs: Inputs) -> int:
    """Multiplications of a forward pass of one example; at least as many as there are weights.

    Args:
        network: The network.
        inputs: At least one example.
    """
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = NoModules()  # type: ignore[assignment]
    with torch.no_grad(), counter:
        network(take(inputs, slice(0, 1)))
    return max(counter.get_total_flops() // 2, network.layout.size)


@final
class NoModules:
    """In place of what tells a counter its module, by hooks that fail in networks with derivatives inside."""

    parents = ("Global",)

    def __enter__(self) -> None:
        """Nothing is hooked."""

    def __exit__(self, *_: object) -> None:
        """Nothing was hooked."""


@final
class Work:
    """What one example takes, counted on the first of some: one forward and one backward pass.

    Args:
        model: The network and its likelihood.
        inputs: At least one example.
        cotangents: Directions an example is pulled back along, c.
    """

    def __init__(self, model: Model, inputs: Inputs, cotangents: int) -> None:
        one, network = take(inputs, slice(0, 1)), model.network
        self.cotangents, self.forward = cotangents, multiplications(network, one)
        """Cotangents c; multiplications of a forward pass, F."""
        forward = model.forward(one)
        factors = forward.layer_factors(torch.ones_like(forward.outputs).unsqueeze(0))
        counts = [count(factor, cotangents) for factor in factors]
        self.first = counts[0].forward if counts else 0
        """Multiplications of the first layer."""
        loose = cotangents * sum(network.params[name].numel() for name in model.survey.loose)
        if loose:
            counts.append(Count(cotangents * self.forward, loose, 0, loose, 0, 0))
        self.layers = Count(*map(sum, zip(*counts, strict=True)))
        """What its Jacobian takes layer by layer."""

    def size(self, form: Form) -> int:
        """Numbers kept between products for one example, in a form."""
        return self.layers.held if form == "layers" else TENSORS * self.layers.outputs

    def cost(self, form: Form, columns: int, *, kept: bool) -> float:
        """Multiplications of one product with a block of columns, for one example.

        Args:
            form: ``"layers"`` or ``"split"``.
            columns: Columns C of the block.
            kept: Whether what does not depend on the columns is kept between products.
        """
        share = 1 / PRODUCTS if kept else 1.0
        if form == "split":
            return share * self.forward + columns * (4.0 * self.forward - 2.0 * self.first)
        building = LOSS * ((1 + self.cotangents) * self.forward + self.layers.building)
        return share * building + 2.0 * (self.layers.rows * max(columns, STREAM) + self.layers.factors * columns)

    def chunk(self, itemsize: int, budget: int) -> int:
        """Examples whose split fits the budget, in bytes."""
        return max(1, budget // max(itemsize * self.size("split"), 1))

    def choose(self, columns: int, numbers: int, examples: int) -> Form:
        """The cheaper form; never *layers* where one example takes more than a quarter of the room.

        Args:
            columns: Columns C of the block.
            numbers: Numbers there is room for.
            examples: Examples n of the data.
        """
        layers, split = (
            self.cost(form, columns, kept=self.size(form) * examples <= numbers) for form in ("layers", "split")
        )
        return "layers" if layers <= split and 4 * self.layers.held <= numbers else "split"


C = TypeVar("C")
"""A chunk of the data, ready for any number of columns."""

Prepare: TypeAlias = Callable[[Batch], tuple[C, int | None]]
"""Of a chunk what does not depend on the columns, and the bytes it occupies; ``None`` if keeping it saves nothing."""


@final
@dataclass
class Store(Generic[C]):
    """What is kept of the data between products, form by form: everything or nothing.

    Everything, because a loader may shuffle: what is kept of one pass cannot be completed from another. Where there is
    no room for two forms, the one that was asked for last is kept.

    Args:
        memory: Bytes there are.
        kept: All chunks in the forms that are kept, with their bytes.
        too_large: Forms that were seen not to fit.
    """

    memory: int = MEMORY
    kept: dict[Form, list[tuple[C, int]]] = field(default_factory=dict)
    too_large: set[Form] = field(default_factory=set)

    @property
    def room(self) -> int:
        """Bytes for what is kept."""
        return self.memory - self.memory // WORKING

    @property
    def bytes(self) -> int:
        """Bytes that are kept."""
        return sum(size for chunks in self.kept.values() for _, size in chunks)

    def visit(self, form: Form, data: Data, examples: int, prepare: Prepare[C]) -> Iterator[C]:
        """Every chunk of the data; kept from then on, if all of them fit.

        Args:
            form: In which form.
            data: The data; not read if everything is kept.
            examples: Examples to a chunk, at most.
            prepare: What prepares one.
        """
        if form in self.kept:
            yield from (chunk for chunk, _ in self.kept[form])
            return
        kept: list[tuple[C, int]] | None = None if form in self.too_large else []
        room, others = self.room, self.bytes
        for batch in data:
            for part in parts(batch, examples):
                prepared, size = prepare(part)
                if size is None:
                    kept = None
                elif kept is not None:
                    room -= size
                    kept.append((prepared, size))
                    if room < others:
                        self.kept, others = {}, 0
                    if room < 0:
                        kept = None
                        self.too_large.add(form)
                        logger.info("%s: not kept, all data take more than %d bytes", form, self.memory)
                yield prepared
                del prepared
        if kept is not None:
            self.kept = {**self.kept, form: kept}


def parts(batch: Batch, size: int) -> Iterator[Batch]:
    """A batch in pieces of at most ``size`` examples, all alike where the number of examples allows it."""
    for place, inputs in chunks(batch.inputs, even(len(batch), size)):
        yield Batch(inputs, batch.targets[place])


def even(examples: int, size: int) -> int:
    """The largest divisor of ``examples`` up to ``size``, or ``size`` where that is less than half of it.

    Example:
        >>> even(250, 85), even(256, 85), even(13, 5), even(3, 85)
        (50, 64, 5, 3)
    """
    if examples <= size:
        return max(examples, 1)
    divisor = next(size_ for size_ in range(size, 0, -1) if examples % size_ == 0)
    return divisor if 2 * divisor >= size else size
