"""What tuning says where it ended at no answer, and the noise that is the default."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.ground.errors import ConfigError, ConvergenceWarning
from tests.checker import unchecked
from tests.posterior_cases import mlp, normal, refused, seeded

STILL_CLIMBING = "ignore:.*steps:lapwing.ground.errors.ConvergenceWarning"
"""What a method also says of a maximum that is nowhere."""


def correlated(structure: Any) -> lw.Posterior:
    """A linear regression on 200 inputs that are nearly one: a diagonal takes each for a direction of its own."""
    model = seeded(lambda: nn.Linear(200, 1, bias=False))
    x = normal(40, 1) + 1e-3 * normal(40, 200, seed=1)
    y = model(x).detach() + 0.3 * normal(40, 1, seed=2)
    return lw.Laplace(lw.Gaussian(), structure=structure).fit(model, (x, y))


def residual(posterior: lw.Posterior) -> float:
    """Root mean square of the residuals at the trained weights, where the noise precision was 1."""
    return (posterior.totals.misfit / posterior.totals.observations) ** 0.5


@pytest.mark.filterwarnings(STILL_CLIMBING)
@pytest.mark.parametrize(
    "method", [lw.EvidenceGradient(at="mode"), lw.MacKay(at="mode"), lw.EM(steps=40)], ids=lambda m: type(m).__name__
)
def test_noise_at_the_end_of_its_range_is_no_answer(method: Any) -> None:
    """The network is far from its optimum, at which it fits the data exactly."""
    model, x = seeded(lambda: nn.Linear(3, 1)), normal(20, 3)
    posterior = lw.Laplace(lw.Gaussian()).fit(model, (x, x.sum(1, keepdim=True) + 1.0))
    with pytest.warns(ConvergenceWarning, match=r"end of its range.*EvidenceGradient\(noise=\"residuals\"\)"):
        tuned = lw.tune(posterior, method)
    assert tuned.likelihood.precision > 1e9
    noise = lw.tune(posterior, lw.EvidenceGradient(noise="residuals")).likelihood.noise_std
    assert noise == pytest.approx(residual(posterior))


@pytest.mark.filterwarnings(STILL_CLIMBING)
@pytest.mark.parametrize("method", [lw.EvidenceGradient(), lw.MacKay()], ids=lambda m: type(m).__name__)
def test_a_prior_at_the_end_of_its_range_is_no_answer(method: Any) -> None:
    """Weights that are all 0 ask for a prior that is certain of it."""
    model, x = seeded(lambda: nn.Linear(3, 1)), normal(20, 3)
    with torch.no_grad():
        model.bias.zero_()
    posterior = lw.Laplace(lw.Gaussian(), prior=lw.Layerwise()).fit(model, (x, normal(20, 1, seed=1)))
    with pytest.warns(ConvergenceWarning, match=r"1 of 2 prior precisions to 1e\+12"):
        lw.tune(posterior, method)


def test_noise_several_times_the_residuals_warns_and_the_default_keeps_to_them() -> None:
    posterior = correlated(lw.Diagonal())
    with pytest.warns(ConvergenceWarning, match=r"times the residuals.*40 observations.*noise=\"residuals\""):
        tuned = lw.tune(posterior, lw.EvidenceGradient())
    assert tuned.likelihood.noise_std > 3 * residual(posterior)
    for structure, beyond in ((lw.Diagonal(), 1.0), (lw.KFAC(), 1.1)):
        held = correlated(structure)
        best = lw.tune(held)
        assert residual(held) * (1 - 1e-6) < best.likelihood.noise_std < beyond * residual(held) * (1 + 1e-6)
        alpha, scale = best.prior_precisions, best.scale
        gamma = best.evidence.effective_dimensions(alpha, scale)
        torch.testing.assert_close(alpha * best.evidence.square_norms, gamma, rtol=1e-6, atol=0)  # largest evidence
    full = lw.tune(correlated(lw.Full(view="weights")))
    free = 40 - full.effective_dimension()
    assert full.likelihood.noise_std == pytest.approx((full.totals.misfit / free) ** 0.5, rel=1e-6)


def test_the_default_noise_is_that_of_the_network_and_not_of_a_linear_model_that_fits_better() -> None:
    x = normal(12, 3)
    posterior = lw.Laplace(lw.Gaussian(shared=True)).fit(mlp(), (x, 3 * x[:, :2]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        anew = lw.tune(posterior, lw.EM())
    assert anew.likelihood.noise_std < 0.8 * residual(posterior) < 0.8 * lw.tune(posterior).likelihood.noise_std


def test_other_ways_to_choose_the_noise_are_refused() -> None:
    expected = "noise= to be one of True, False, 'residuals'"
    with unchecked(), refused(ConfigError, expected):
        lw.EvidenceGradient(noise="mode")  # type: ignore[arg-type]
