"""Examples and outputs drawn uniformly from a loader of any length, in one pass that never asks the network."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from lapwing.curvature.features import Pairs
from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs, check_inputs, concatenated, take
from lapwing.ground.data.sources import Batch, Data


@final
class Reservoir:
    """Keeps ``size`` of the (example, output) pairs it is shown, all alike likely, none twice.

    Every pair gets a random key, and the smallest keys stay.

    Args:
        size: Pairs to keep, at most.
        outputs: Outputs of an example; 1 to draw examples.
        generator: Source of the keys.
    """

    def __init__(self, size: int, outputs: int, generator: torch.Generator) -> None:
        self._size, self._outputs, self._generator = size, outputs, generator
        self._seen, self._held, self._bound = 0, 0, math.inf
        self._parts: list[tuple[Tensor, Pairs, Tensor]] = []

    def add(self, batch: Batch) -> None:
        """Show it the pairs of a batch."""
        m, device = self._outputs, batch.targets.device
        keys = probes.gaussian([len(batch) * m], like=torch.zeros(0, dtype=torch.float64), generator=self._generator)
        kept = smallest(keys, self._size)
        kept = kept[keys[kept] < self._bound]
        if len(kept) or not self._parts:
            examples = (kept // m).to(device)
            new = Pairs(take(batch.inputs, examples), self._seen + kept // m, kept % m)
            self._parts.append((keys[kept], new, batch.targets[examples]))
            self._held += len(kept)
        self._seen += len(batch)
        if self._held > 2 * self._size:
            self._whole()

    def _whole(self) -> tuple[Tensor, Pairs, Tensor]:
        """What was kept as one, those dropped that later pairs pushed out: every so often, not at every batch."""
        keys, pairs, targets = (list(parts) for parts in zip(*self._parts, strict=True))
        together = Pairs(
            concatenated([part.inputs for part in pairs]),
            torch.cat([part.examples for part in pairs]),
            torch.cat([part.outputs for part in pairs]),
        )
        every, values = torch.cat(keys), torch.cat(targets)
        kept = smallest(every, self._size)
        self._parts = [(every[kept], together.at(kept), values[kept.to(values.device)])]
        self._held = len(kept)
        self._bound = float(every[kept].max()) if len(kept) == self._size else math.inf
        return self._parts[0]

    @property
    def pairs(self) -> Pairs:
        """The pairs kept, in the order of the data."""
        return self._whole()[1]

    @property
    def examples(self) -> tuple[Inputs, Tensor]:
        """Inputs and targets of the pairs kept."""
        _, pairs, targets = self._whole()
        return pairs.inputs, targets


def fill(data: Data, *reservoirs: Reservoir) -> None:
    """Show all data to some reservoirs, in one pass.

    Raises:
        DataError: If inputs are not finite.
    """
    for batch in data:
        check_inputs(batch.inputs)
        for reservoir in reservoirs:
            reservoir.add(batch)


def smallest(keys: Tensor, size: int) -> Tensor:
    """Where the smallest keys are, in order of place."""
    return keys.topk(min(size, len(keys)), largest=False).indices.sort().values
