"""How much of a study is run."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Setting:
    """The options of the command line.

    Args:
        quick: Whether seconds must do: few points, a small network, two seeds. Its numbers say nothing.
        seeds: How often a study is repeated.
    """

    quick: bool = False
    seeds: int = 20

    @property
    def repeats(self) -> range:
        """The seeds."""
        return range(2 if self.quick else self.seeds)


def generator(seed: int = 0) -> torch.Generator:
    """A seeded source of randomness."""
    return torch.Generator().manual_seed(seed)
