from __future__ import annotations

import torch
from torch import nn

from benchmarks.data import generator
from benchmarks.tasks import BATCH, probabilities
from lapwing.evaluation.plain_network import PlainNetwork


def test_batches_change_no_prediction() -> None:
    sizes: list[int] = []

    class Counting(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes.append(len(x))
            return super().forward(x)

    whole = PlainNetwork(Counting(4, 3))
    x = torch.randn(2 * BATCH + 30, 4, generator=generator())
    expected = whole.predict(x).probs
    sizes.clear()
    torch.testing.assert_close(probabilities(whole, x), expected)
    assert sizes == [BATCH, BATCH, 30]
