"""Networks in float32 have the posteriors of networks in float64, however weak the prior and however sharp the data."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from tests.posterior_cases import seeded

X = torch.linspace(-2, 2, 40)[:, None]
NEW = torch.linspace(-1.9, 2.5, 15)[:, None]

STRUCTURES: dict[str, Any] = {
    "full over weights": lw.Full(view="weights"),
    "full over functions": lw.Full(view="functions"),
    "KFAC": lw.KFAC(),
    "low rank": lw.LowRank(40),
    "low rank by Lanczos": lw.LowRank(40, method="lanczos"),
    "Nyström": lw.Nystrom(samples=40),
    "Nyström as published": lw.Nystrom(samples=40, residual=False),
}


def fitted(structure: Any, noise: float, prior: float, dtype: torch.dtype, precision: Any = None) -> Any:
    """A posterior of a sine's network."""
    model = seeded(lambda: nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1))).to(dtype)
    recipe = lw.Laplace(lw.Gaussian(noise), structure=structure, prior=lw.Isotropic(prior), precision=precision)
    x = X.to(dtype)
    return recipe.fit(model, (x, (3 * x).sin()))


def variances(structure: Any, noise: float, prior: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Of its outputs, each by itself and all together."""
    posterior = fitted(structure, noise, prior, dtype)
    new = NEW.to(dtype)
    joint = posterior.outputs(new, joint=True).covariance.reshape(len(NEW), len(NEW))
    return posterior.outputs(new).marginal().variance[:, 0].double(), joint.double()


@pytest.mark.parametrize(("noise", "priors"), [(1.0, (1e-2,)), (1e4, (1e-2, 1.0, 1e2)), (1e6, (1e-2, 1e2))])
@pytest.mark.parametrize("name", STRUCTURES)
def test_variances_are_those_of_a_network_in_float64(name: str, noise: float, priors: tuple[float, ...]) -> None:
    for prior in priors:
        single, joint = variances(STRUCTURES[name], noise, prior, torch.float32)
        double, joint_double = variances(STRUCTURES[name], noise, prior, torch.float64)
        torch.testing.assert_close(single, double, rtol=1e-3, atol=0.0)
        scale = double.sqrt()[:, None] * double.sqrt()
        torch.testing.assert_close(joint / scale, joint_double / scale, rtol=0.0, atol=1e-3)


UNRESOLVED = {"KFAC": 1e-2, "full over weights": 1e-2, "full over functions": 1.0, "Nyström": 1.0}
"""Prior precisions that products in float32 do not resolve."""


@pytest.mark.parametrize("name", UNRESOLVED)
def test_a_warning_says_by_how_much_variances_are_wrong(name: str) -> None:
    structure = STRUCTURES[name]
    if isinstance(structure, lw.Nystrom):
        structure = replace(structure, tolerance=1e-6)  # of the same directions, whatever the products are made in
    prior = UNRESOLVED[name]
    with pytest.warns(lw.PrecisionWarning) as told:
        single = fitted(structure, 1e4, prior, torch.float32, "single")
    double = fitted(structure, 1e4, prior, torch.float64)
    wrong = single.outputs(NEW).marginal().variance.double() / double.outputs(NEW.double()).marginal().variance - 1
    size = float(wrong.abs().mean())
    said = re.search(r"about ([\d.]+) %", str(told[0].message))
    assert said is not None
    assert size / 5 < float(said[1]) / 100 < 5 * size


def test_pairs_of_many_outputs_that_are_lost_to_rounding_are_warned_of() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 200))).float()
    recipe = lw.Laplace(lw.Gaussian(1e6), structure=lw.LowRank(10), prior=lw.Isotropic(1.0), weights=lw.Names("0.*"))
    with pytest.warns(lw.PrecisionWarning, match="model.double()"):
        recipe.fit(model, (1e-4 * X, (torch.arange(1, 201) * X).sin()))  # weights that the data say little about
