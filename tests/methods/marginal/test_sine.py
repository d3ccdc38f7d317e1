"""The claim of ``studies.sine``, small: α is near the exact optimum, and the gap predicted better than by MAP."""

from __future__ import annotations

import pytest

import lapwing as lw
from studies.sine import Data, Length, Way, measured, network, optimum

SHORT = Length(epochs=20, lr=2e-2, batch=32)


@pytest.mark.no_cover
def test_the_prior_precision_is_learned_and_the_gap_is_predicted() -> None:
    row = measured("default", Way({}), 1, SHORT)
    assert 0.5 < row["alpha_ratio"] < 2.0
    assert row["alpha"] == pytest.approx(row["alpha_tuned"], rel=1e-3)
    assert row["nll_gap"] < row["nll_gap_map"]


def test_the_exact_optimum_is_that_of_the_evidence() -> None:
    data, model = Data.draw(0), network(0)
    fitted = lw.Laplace(lw.Gaussian(), structure=lw.Full()).fit(model, data.train)
    best = lw.tune(fitted, lw.EvidenceGradient())
    alpha, rho, evidence = optimum(model, data.train)
    assert alpha == pytest.approx(best.prior.precision, rel=0.02)
    assert rho == pytest.approx(best.likelihood.precision, rel=0.02)
    assert evidence == pytest.approx(best.log_marginal(), abs=1e-2)
