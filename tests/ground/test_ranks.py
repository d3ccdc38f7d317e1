"""What processes say to each other; ``tests/laws/test_ranks.py`` starts some."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground import ranks
from lapwing.ground.data import Data


def test_tensors_are_alike_however_they_lie_in_memory(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = torch.randn(5, 3, generator=generator)[:, 1]
    told = list[list[int]]()
    monkeypatch.setattr(ranks, "all_of", lambda value: told.append(value) or [value])
    for values in (column, column.clone(), column.flip(0)):
        Data((values, values), shared=True).check_alike(values, "inputs")
    assert told[0] == told[1] != told[2]
