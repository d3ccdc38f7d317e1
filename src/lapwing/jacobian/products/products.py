"""A sum over the data of products with a block of columns: batches outside, columns inside, what is reusable kept."""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data import Batch, Data, chunks
from lapwing.jacobian.products.costs import Form

logger = logging.getLogger(__name__)

MEMORY = 2**31
"""Bytes a product may occupy, what it keeps included (2 GiB)."""

WORKING = 8
"""One in so many bytes of that is left for work in progress."""


@runtime_checkable
class Sized(Protocol):
    """A chunk of the data, ready for any number of columns."""

    @property
    def bytes(self) -> int | None:
        """Bytes it occupies; ``None`` if keeping it saves nothing."""
        ...


C = TypeVar("C", bound=Sized)
K = TypeVar("K", bound=Sized, covariant=True)


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
    """What is kept of the data between products, form by form: everything or nothing.

    Everything, because a loader may shuffle: what is kept of one pass cannot be completed from another. Where there is
    no room for two forms, the one that was asked for last is kept.
    """

    kept: dict[Form, list[C]] = field(default_factory=dict)
    too_large: set[Form] = field(default_factory=set)

    def chunks(self, form: Form) -> list[C] | None:
        """All chunks in one form; ``None`` where they are not kept."""
        return self.kept.get(form)

    @property
    def bytes(self) -> int:
        """Bytes that are kept."""
        return sum(chunk.bytes or 0 for chunks in self.kept.values() for chunk in chunks)

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
        kept: list[C] | None = None if executor.form in self.too_large else []
        room, others = memory - memory // WORKING, self.bytes
        for batch in data:
            for part in parts(batch, executor.size(len(batch))):
                prepared = executor.prepare(part)
                if prepared.bytes is None:
                    kept = None
                elif kept is not None:
                    room -= prepared.bytes
                    kept.append(prepared)
                    if room < others:
                        self.kept, others = {}, 0
                    if room < 0:
                        kept = None
                        self.too_large.add(executor.form)
                        logger.info("%s: not kept, all data take more than %d bytes", executor.form, memory)
                yield prepared
                del prepared
        if kept is not None:
            self.kept = {**self.kept, executor.form: kept}


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
