"""Which of many examples are looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from lapwing.ground.data.inputs import take
from lapwing.ground.data.sources import Batch


def evenly(batches: Sequence[Batch], examples: int) -> Iterator[Batch]:
    """At most so many examples, evenly over all batches."""
    total = sum(len(batch) for batch in batches)
    if total <= examples:
        yield from batches
        return
    yield from selected(batches, torch.linspace(0, total - 1, examples, dtype=torch.float64).round().long())


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
