"""A sum over the data of products with a block of columns: batches outside, columns inside, what is reusable kept."""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data import Batch, Data, chunks
from lapwing.jacobian.products.costs import Form
from lapwing.linalg import Operator

logger = logging.getLogger(__name__)

MEMORY = 2**31
"""Bytes a product may occupy, what it keeps included (2 GiB)."""

WORKING = 8
"""One in so many bytes of that is left for work in progress."""


@runtime_checkable
class Chunk(Protocol):
    """A chunk of the data, ready for any number of columns."""

    @property
    def bytes(self) -> int | None:
        """Bytes it occupies; ``None`` if keeping it saves nothing."""
        ...


C = TypeVar("C", bound=Chunk)
K = TypeVar("K", bound=Chunk, covariant=True)


@final
@dataclass(frozen=True, eq=False)
class Prepared:
    """A chunk of the data, ready for any number of columns.

    Args:
        product: From a block of columns to the chunk's part of the product.
        bytes: Bytes it occupies; ``None`` if keeping it saves nothing.
    """

    product: Callable[[Float[Tensor, "d k"]], Float[Tensor, "d k"]]
    bytes: int | None


@final
@dataclass(frozen=True, eq=False)
class Part:
    """What some of the examples add to the curvature.

    Args:
        curvature: Their part G_S of ``G = sum_S G_S``.
        examples: How many they are.
    """

    curvature: Operator
    examples: int


@runtime_checkable
class Counted(Protocol):
    """Some of the examples."""

    @property
    def examples(self) -> int:
        """How many they are."""
        ...


E = TypeVar("E", bound=Counted)


def gathered(pieces: Iterable[E], batch: int) -> Iterator[Iterator[E]]:
    """Mini-batches: consecutive pieces, together until they have ``batch`` examples; each is read before the next.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> pieces = [Part(Diagonal(torch.ones(2)), examples) for examples in (2, 2, 5, 1)]
        >>> [[piece.examples for piece in group] for group in gathered(pieces, 4)]
        [[2, 2], [5], [1]]
    """
    left = iter(pieces)
    for first in left:
        yield _until(first, left, batch)


def shuffled(pieces: Iterable[E], batch: int, *, generator: torch.Generator | None = None) -> Iterator[Iterator[E]]:
    """The same mini-batches in random order; without a generator, in that of the pieces."""
    if generator is None:
        return gathered(pieces, batch)
    groups = [list(group) for group in gathered(pieces, batch)]
    return (iter(groups[i]) for i in probes.permutation(len(groups), generator=generator))


def _until(first: E, left: Iterator[E], batch: int) -> Iterator[E]:
    examples = first.examples
    yield first
    while examples < batch and (more := next(left, None)) is not None:
        examples += more.examples
        yield more


class Executor(abc.ABC, Generic[K]):
    """One form of a product."""

    form: Form

    def size(self, examples: int) -> int:
        """Examples to a chunk of a batch of ``examples``: batches stay whole unless a form says otherwise."""
        return examples

    @abc.abstractmethod
    def prepare(self, batch: Batch) -> K:
        """All that does not depend on the columns."""


@final
@dataclass
class Store(Generic[C]):
    """What is kept of the data between products: everything, for one form, or nothing.

    Everything, because a loader may shuffle: what is kept of one pass cannot be completed from another.
    """

    kept: tuple[Form, list[C]] | None = None
    too_large: set[Form] = field(default_factory=set)

    def chunks(self, form: Form) -> list[C] | None:
        """All chunks in one form; ``None`` where they are not kept."""
        kept = self.kept  # read once: another thread may put other chunks in their place
        return None if kept is None or kept[0] != form else kept[1]

    @property
    def bytes(self) -> int:
        """Bytes that are kept."""
        kept = self.kept
        return 0 if kept is None else sum(chunk.bytes or 0 for chunk in kept[1])

    def visit(self, executor: Executor[C], data: Data, memory: int) -> Iterator[C]:
        """Every chunk of the data; kept from then on, if all of them fit.

        Args:
            executor: What prepares them.
            data: The data; not read if everything is kept.
            memory: Bytes there are.
        """
        known = self.chunks(executor.form)
        if known is not None:
            yield from known
            return
        self.kept = None
        kept: list[C] | None = None if executor.form in self.too_large else []
        room = memory - memory // WORKING
        for batch in data:
            for part in parts(batch, executor.size(len(batch))):
                prepared = executor.prepare(part)
                if prepared.bytes is None:
                    kept = None
                elif kept is not None:
                    room -= prepared.bytes
                    kept.append(prepared)
                    if room < 0:
                        kept = None
                        self.too_large.add(executor.form)
                        logger.info("%s: not kept, all data take more than %d bytes", executor.form, memory)
                yield prepared
                del prepared
        self.kept = None if kept is None else (executor.form, kept)


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


def total(prepared: Iterator[Prepared], block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
    """The sum over the data."""
    result = torch.zeros_like(block)
    for chunk in prepared:
        result += chunk.product(block)
    return result
