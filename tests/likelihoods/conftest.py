"""Every likelihood with outputs and targets to try it on, in float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

NAMES = [
    "gaussian",
    "gaussian-per-output",
    "gaussian-tokens",
    "categorical",
    "categorical-tokens",
    "categorical-pixels",
    "bernoulli",
    "poisson",
    "negative-binomial",
    "heteroscedastic",
    "student-t",
]


class Case(NamedTuple):
    likelihood: Any
    outputs: Tensor
    targets: Tensor


@pytest.fixture(params=NAMES)
def case(request: pytest.FixtureRequest) -> Case:
    import lapwing.likelihoods as lk  # here, because the shape checker must be installed first

    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=g)

    match request.param:
        case "gaussian":
            return Case(lk.Gaussian(2.5), normal(5, 3), normal(5, 3))
        case "gaussian-per-output":
            return Case(lk.Gaussian((0.5, 3.0)), normal(5, 2), normal(5, 2))
        case "gaussian-tokens":
            return Case(lk.Gaussian(2.0, event_dim=1), normal(2, 3, 2), normal(2, 3, 2))
        case "categorical":
            return Case(lk.Categorical(), 2 * normal(5, 3), torch.tensor([0, 2, -100, 1, 2]))
        case "categorical-tokens":
            targets = torch.tensor([[0, 1, -100], [2, 3, 1]])
            return Case(lk.Categorical(event_dim=1), normal(2, 3, 4), targets)
        case "categorical-pixels":
            targets = torch.randint(0, 3, (2, 2, 4), generator=g)
            return Case(lk.Categorical(event_dim=2, class_dim=1), normal(2, 2, 4, 3), targets)
        case "bernoulli":
            return Case(lk.Bernoulli(), 2 * normal(5, 3), (normal(5, 3) > 0).double())
        case "poisson":
            counts = torch.poisson(torch.full((5, 2), 2.0, dtype=torch.float64), generator=g)
            return Case(lk.Poisson(), normal(5, 2), counts)
        case "negative-binomial":
            counts = torch.poisson(torch.full((5, 2), 2.0, dtype=torch.float64), generator=g)
            return Case(lk.NegativeBinomial(0.1), 0.5 * normal(5, 2), counts)
        case "heteroscedastic":
            return Case(lk.HeteroscedasticGaussian(), normal(5, 4), normal(5, 2))
        case "student-t":
            return Case(lk.StudentT(5.0, 0.7), normal(5, 2), 2 * normal(5, 2))
    raise LookupError(request.param)
