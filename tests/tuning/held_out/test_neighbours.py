"""Which training example is near: by columns that may lie far from zero."""

from __future__ import annotations

import torch

from lapwing.tuning.held_out.neighbours import by_columns, squared_distances
from tests.posterior_cases import normal


def test_columns_far_from_zero_lose_no_digits() -> None:
    """Such as seconds since 1970."""
    x = normal(20, 3)
    shifted = x + 1e9 * torch.tensor([1.0, 0.0, 0.0])
    view = by_columns(shifted)
    found = squared_distances(view(shifted), view(shifted))
    scaled = (x - x.mean(0)) / x.std(0, correction=0)
    expected = torch.cdist(scaled, scaled).square().fill_diagonal_(torch.inf)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
