"""Draws that are kept for a prior of other groups do not keep what they had of each group."""

from __future__ import annotations

import torch
from torch import nn

import lapwing as lw


def test_draws_that_are_kept_count_every_group_anew() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double().eval()
    x, y = torch.randn(20, 2).double(), torch.randint(0, 2, (20,))
    posterior = lw.Laplace(lw.Categorical(), structure=lw.Sampled(samples=3)).fit(model, (x, y))
    whole = posterior.output_squares
    regrouped = posterior.with_choices(lw.Layerwise(1.0), posterior.likelihood)
    assert len(regrouped.prior_precisions) == len(regrouped.output_squares) > 1
    torch.testing.assert_close(regrouped.output_squares.sum(0), whole.sum(0))
