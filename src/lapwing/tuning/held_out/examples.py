"""Which of many examples are looked at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, concatenated, count, take
from lapwing.ground.data.sources import Batch

Key: TypeAlias = str | int
"""Of one entry of the inputs: the name of a keyword argument, or the place of a positional one."""


def evenly(batches: Sequence[Batch], examples: int) -> Iterator[Batch]:
    """At most so many examples, evenly over all batches."""
    total = sum(len(batch) for batch in batches)
    if total <= examples:
        yield from batches
        return
    yield from selected(batches, torch.linspace(0, total - 1, examples, dtype=torch.float64).round().long())


def spread(examples: int) -> Int[Tensor, " n"]:
    """The numbers of so many examples in an order whose beginnings, however long, lie evenly over all of them.

    The k-th has the rank of the fractional part of ``k φ`` for the golden ratio φ.

    Example:
        >>> spread(8).tolist()
        [0, 5, 2, 7, 4, 1, 6, 3]
    """
    parts = torch.arange(examples, dtype=torch.float64) * ((1 + math.sqrt(5)) / 2) % 1.0
    return parts.argsort().argsort()


def joined(batches: Sequence[Batch]) -> list[Batch]:
    """One batch of all of them, where they can be put together."""
    if len(batches) < 2 or len({kinds(batch) for batch in batches}) > 1 or None in kinds(batches[0]):
        return list(batches)
    inputs = concatenated([batch.inputs for batch in batches])
    return [Batch(inputs, torch.cat([batch.targets for batch in batches]))]


def kinds(batch: Batch) -> tuple[tuple[object, ...] | None, ...]:
    """Key, shape and type of each entry for one example; ``None`` for an entry without an axis of examples."""
    examples = count(batch.inputs)
    found: list[tuple[object, ...] | None] = []
    for key, value in entries(batch.inputs).items():
        by_example = isinstance(value, Tensor) and value.ndim > 0 and len(value) == examples
        found.append((key, value.shape[1:], value.dtype) if by_example else None)
    return (*found, tuple(batch.targets.shape[1:]))


def entries(inputs: Inputs) -> dict[Key, Any]:
    """The entries of inputs by the names or the places at which a network is called with them."""
    if isinstance(inputs, Mapping):
        return {key: value for key, value in inputs.items()}
    if isinstance(inputs, tuple):
        return dict(enumerate(inputs))
    return {0: inputs}


def selected(batches: Iterable[Batch], index: Int[Tensor, " m"]) -> Iterator[Batch]:
    """The examples of these numbers, in their order, batch by batch.

    Args:
        batches: The data, of which examples are counted from 0.
        index: Increasing numbers; those of no example here are passed over.
    """
    start = 0
    for batch in batches:
        own = (index[(index >= start) & (index < start + len(batch))] - start).to(batch.targets.device)
        start += len(batch)
        if len(own):
            yield Batch(take(batch.inputs, own), batch.targets[own])
