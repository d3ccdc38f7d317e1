"""Examples and outputs drawn uniformly from a loader of any length, in one pass that never asks the network."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from lapwing.curvature.pairs import Pairs
from lapwing.ground import probes
from lapwing.ground.data import Batch, Data, check_inputs, concatenated, take
from lapwing.ground.types import Inputs


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
        self._seen = 0
        self._keys = torch.zeros(0, dtype=torch.float64)
        self._pairs: Pairs | None = None
        self._targets: Tensor | None = None

    def add(self, batch: Batch) -> None:
        """Show it the pairs of a batch."""
        m = self._outputs
        keys = probes.gaussian([len(batch) * m], like=self._keys, generator=self._generator)
        kept = smallest(keys, self._size)
        device = batch.targets.device
        examples = (kept // m).to(device)
        new = Pairs(take(batch.inputs, examples), self._seen + kept // m, kept % m)
        self._merge(keys[kept], new, batch.targets[examples])
        self._seen += len(batch)

    def _merge(self, keys: Tensor, new: Pairs, targets: Tensor) -> None:
        if self._pairs is None or self._targets is None:
            self._keys, self._pairs, self._targets = keys, new, targets
            return
        old, keys = self._pairs, torch.cat([self._keys, keys])
        kept = smallest(keys, self._size)
        together = Pairs(
            concatenated([old.inputs, new.inputs]),
            torch.cat([old.examples, new.examples]),
            torch.cat([old.outputs, new.outputs]),
        )
        self._keys, self._pairs = keys[kept], together.at(kept)
        self._targets = torch.cat([self._targets, targets])[kept.to(targets.device)]

    @property
    def seen(self) -> int:
        """Examples that were shown."""
        return self._seen

    @property
    def pairs(self) -> Pairs:
        """The pairs kept, in the order of the data."""
        assert self._pairs is not None
        return self._pairs

    @property
    def examples(self) -> tuple[Inputs, Tensor]:
        """Inputs and targets of the pairs kept."""
        assert self._targets is not None
        return self.pairs.inputs, self._targets


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
