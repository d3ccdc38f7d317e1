"""What is kept of the data from one product to the next, chunk by chunk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar, final

from lapwing.ground.data.inputs import chunks
from lapwing.ground.data.sources import Batch, Data
from lapwing.jacobian.products.strategy import Strategy

logger = logging.getLogger(__name__)

MEMORY = 2**31
"""Bytes a product may occupy, what it keeps included (2 GiB)."""

WORKING = 8
"""One in so many bytes of that is left for work in progress."""

C = TypeVar("C")
"""A chunk of the data, ready for any number of columns."""

Prepare: TypeAlias = Callable[[Batch], tuple[C, int | None]]
"""Of a chunk what does not depend on the columns, and the bytes it occupies; ``None`` if keeping it saves nothing."""


@final
@dataclass(eq=False)
class Cache(Generic[C]):
    """What is kept of the data between products, strategy by strategy: everything or nothing.

    Everything, because a loader may shuffle: what is kept of one pass cannot be completed from another. Where there is
    no room for two strategies, the one that was asked for last is kept.

    Args:
        memory: Bytes there are.
        chunks: All chunks of the strategies that are kept, with their bytes.
        too_large: Strategies that were seen not to fit.
    """

    memory: int = MEMORY
    chunks: dict[Strategy, list[tuple[C, int]]] = field(default_factory=dict)
    too_large: set[Strategy] = field(default_factory=set)

    @property
    def room(self) -> int:
        """Bytes for what is kept."""
        return self.memory - self.memory // WORKING

    @property
    def bytes(self) -> int:
        """Bytes that are kept."""
        return sum(size for chunks in self.chunks.values() for _, size in chunks)

    def visit(self, strategy: Strategy, data: Data, examples: int, prepare: Prepare[C]) -> Iterator[C]:
        """Every chunk of the data; kept from then on, if all of them fit.

        Args:
            strategy: By which strategy.
            data: The data; not read if everything is kept.
            examples: Examples to a chunk, at most.
            prepare: What prepares one.
        """
        if strategy in self.chunks:
            yield from (chunk for chunk, _ in self.chunks[strategy])
            return
        gathering = strategy not in self.too_large
        gathered: list[tuple[C, int]] = []
        left = self.room
        for batch in data:
            for part in parts(batch, examples):
                chunk, size = prepare(part)
                if size is None:
                    gathering = False
                    gathered = []
                if gathering and size is not None:
                    gathered.append((chunk, size))
                    left -= size
                    if left < self.bytes:
                        self.chunks = {}
                    if left < 0:
                        gathering = False
                        gathered = []
                        self.too_large.add(strategy)
                        logger.info("%s: not kept, all data take more than %d bytes", strategy, self.memory)
                yield chunk
                del chunk  # or it would lie beside the next while that is made
        if gathering:
            self.chunks = {**self.chunks, strategy: gathered}


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
    divisor = size
    while examples % divisor:
        divisor -= 1
    return divisor if 2 * divisor >= size else size
