"""Examples and outputs drawn uniformly from a loader of any length, in one pass that never asks the network."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from lapwing.curvature.tangent_features import Pairs
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
        self._size = size
        self._outputs = outputs
        self._generator = generator
        self._examples_shown = 0
        self._pairs_kept = 0
        self._largest_key = math.inf
        self._parts: list[tuple[Tensor, Pairs, Tensor]] = []

    def add(self, batch: Batch) -> None:
        """Show it the pairs of a batch."""
        outputs = self._outputs
        device = batch.targets.device
        like = torch.zeros(0, dtype=torch.float64)
        keys = probes.gaussian([len(batch) * outputs], like=like, generator=self._generator)
        kept = smallest(keys, self._size)
        kept = kept[keys[kept] < self._largest_key]
        if len(kept) or not self._parts:
            examples = (kept // outputs).to(device)
            new = Pairs(take(batch.inputs, examples), self._examples_shown + kept // outputs, kept % outputs)
            self._parts.append((keys[kept], new, batch.targets[examples]))
            self._pairs_kept += len(kept)
        self._examples_shown += len(batch)
        if self._pairs_kept > 2 * self._size:
            self._merged()

    def _merged(self) -> tuple[Tensor, Pairs, Tensor]:
        """What was kept as one, those dropped that later pairs pushed out: every so often, not at every batch."""
        keys = torch.cat([part[0] for part in self._parts])
        pairs = [part[1] for part in self._parts]
        targets = torch.cat([part[2] for part in self._parts])
        together = Pairs(
            concatenated([part.inputs for part in pairs]),
            torch.cat([part.examples for part in pairs]),
            torch.cat([part.outputs for part in pairs]),
        )
        kept = smallest(keys, self._size)
        self._parts = [(keys[kept], together.at(kept), targets[kept.to(targets.device)])]
        self._pairs_kept = len(kept)
        self._largest_key = float(keys[kept].max()) if len(kept) == self._size else math.inf
        return self._parts[0]

    @property
    def pairs(self) -> Pairs:
        """The pairs kept, in the order of the data."""
        return self._merged()[1]

    @property
    def examples(self) -> tuple[Inputs, Tensor]:
        """Inputs and targets of the pairs kept."""
        _, pairs, targets = self._merged()
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
