"""Randomness of the studies."""

from __future__ import annotations

import torch


def generator(seed: int = 0) -> torch.Generator:
    """A seeded source of randomness."""
    return torch.Generator().manual_seed(seed)
