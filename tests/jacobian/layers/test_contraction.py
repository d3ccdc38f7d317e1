"""Many variances at once are each one alone; and through the posteriors, every choice predicts as it does alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lapwing as lw
from lapwing.jacobian.layers.columns import DenseColumns
from lapwing.jacobian.layers.contraction import covariances
from lapwing.jacobian.layers.factors import Lookup, Outer, Rows
from tests.posterior_cases import STRUCTURES, normal, problem


def factors() -> dict[str, Any]:
    g = normal(3, 4, 2, 5, 1)
    index = torch.tensor([[0, 2, 2], [1, 1, 5], [3, 0, 5]])
    return {
        "rows": Rows(("w",), normal(3, 4, 701)),
        "outer": Outer("w", "b", DenseColumns(normal(3, 2, 6, 1)), g),
        "lookup": Lookup("e", (6, 2), index, normal(3, 4, 3, 2), padding=5),
    }


@pytest.mark.parametrize("name", ["rows", "outer", "lookup"])
def test_each_variance_as_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapwing.jacobian.layers.contraction.NUMBERS", 2 * 10 * 512)
    factor = factors()[name]
    variances = normal(5, factor.rows().shape[-1]).exp()
    together = covariances(factor, variances)
    for found, variance in zip(together, variances, strict=True):
        torch.testing.assert_close(found, factor.covariance(variance), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("prior", [lw.Isotropic(0.7), lw.Layerwise((0.2, 5.0))], ids=["isotropic", "layerwise"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_each_choice_of_a_posterior_as_alone(structure: str, prior: Any) -> None:
    """Also where the noise differs, and for a low rank and in function space, where the choices share one basis."""
    case = problem("gaussian")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=STRUCTURES[structure], prior=prior))
    choices = [
        posterior.with_choices(prior.with_precisions(posterior.prior_precisions * factor), lw.Gaussian(noise))
        for factor, noise in ((1e-4, 2.5), (1.0, 0.3), (1e3, 11.0))
    ]
    for choice, outputs in zip(choices, posterior.outputs_each(case.new, choices), strict=True):
        expected = choice.predict(case.new).outputs.covariance
        torch.testing.assert_close(outputs.covariance, expected, rtol=1e-8, atol=1e-12)
