"""The bound leaves out an offset of the outputs where it is free."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.structures.selection import Selection
from lapwing.tuning.elbo import natural_target
from tests.posterior_cases import normal, problem


@pytest.mark.parametrize(
    ("weights", "target"),
    [
        (lw.All(), "simplified"),
        (lw.LastLayer(), "simplified"),
        (lw.Names("0.*"), "affine"),
        (lw.Subnetwork(7, by="magnitude"), "affine"),
    ],
)
def test_an_offset_is_left_out_where_the_last_layer_makes_the_outputs(weights: Selection, target: str) -> None:
    case = problem("categorical")
    posterior = case.fit(lw.Laplace(case.likelihood, weights=weights, structure=lw.Full(view="weights")))
    assert natural_target(posterior) == target
    assert lw.tune(posterior, lw.ELBO()).trace == lw.tune(posterior, lw.ELBO(target=target)).trace  # type: ignore[arg-type]


def test_an_offset_is_kept_where_outputs_do_not_come_from_a_linear_layer() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double()
    posterior = lw.Laplace(lw.Categorical()).fit(model, (normal(10, 3), torch.arange(10) % 3))
    assert natural_target(posterior) == "affine"
