"""Problems whose structure is to be chosen, and their fits."""

from __future__ import annotations

from torch import nn

import lapwing as lw
from lapwing.structures import Structure
from tests.posterior_cases import Problem, labels, normal, seeded


def wide(width: int) -> Problem:
    """A classifier of few examples whose 2 · ``width`` weights are one linear layer."""
    model = seeded(lambda: nn.Linear(width, 2, bias=False))
    return Problem(model, lw.Categorical(), normal(4, width), labels(4, classes=2), normal(2, width, seed=1))


def fit(case: Problem, structure: Structure, **options: object) -> lw.Posterior:
    return case.fit(lw.Laplace(case.likelihood, structure=structure, **options))  # type: ignore[arg-type]
