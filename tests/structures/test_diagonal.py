"""The diagonal structure is the diagonal of the full one."""

from __future__ import annotations

import torch

import lapwing as lw
from lapwing.posteriors import WeightPosterior
from tests.posterior_cases import problem
from tests.structures.cases import fit


def test_diagonal_is_the_diagonal_of_full() -> None:
    case = problem("images")
    diagonal, full = (fit(case, structure) for structure in (lw.Diagonal(), lw.Full(view="weights")))
    assert isinstance(diagonal, WeightPosterior) and isinstance(full, WeightPosterior)
    values = diagonal.curvature.operator.diagonal()
    torch.testing.assert_close(values, full.curvature.operator.diagonal(), rtol=1e-12, atol=1e-12)
