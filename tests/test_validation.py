"""Held-out data choose for posteriors without an exact evidence too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lapwing as lw
from tests.posterior_cases import Problem, normal, problem

EXACT = lw.CG(rtol=1e-10)
METHOD: dict[str, Any] = {"coarse": 3, "refine": 2, "bounds": (1e-1, 1e2)}


def held_out(case: Problem) -> tuple[Tensor, Tensor]:
    return normal(8, 3, seed=5), case.y[:8]


@pytest.mark.parametrize("structure", [lw.Sampled(5, EXACT), lw.MatrixFree(EXACT)], ids=["sampled", "matrix-free"])
@pytest.mark.parametrize("name", ["gaussian", "categorical"])
def test_every_loss_is_that_of_evaluate(name: str, structure: Any) -> None:
    case = problem(name)
    posterior = case.fit(lw.Laplace(case.likelihood, structure=structure))
    tuned = lw.tune(posterior, lw.Validation(held_out(case), **METHOD))
    assert len(tuned.trace) == (18 if name == "gaussian" else 6)
    for step in tuned.trace:
        likelihood = lw.Gaussian(step.noise_precision) if name == "gaussian" else case.likelihood
        there = posterior.with_choices(posterior.prior.with_precisions(torch.tensor(step.prior_precision)), likelihood)
        assert step.validation_nll == pytest.approx(lw.evaluate(there, held_out(case))["nll"], rel=1e-6)
        assert step.log_marginal is None
        if isinstance(there, lw.SampledPosterior):
            gamma = there.effective_dimension()
            assert step.effective_dimension == pytest.approx(gamma.value, rel=1e-6)
            assert step.effective_dimension_error == pytest.approx(gamma.stderr, rel=1e-5)
    losses = [step.validation_nll for step in tuned.trace]
    assert losses[-1] == min(losses) < max(losses)
    assert type(tuned) is type(posterior)


def test_many_draws_choose_as_the_dense_matrices_do() -> None:
    case = problem("categorical")
    chosen = []
    for structure in (lw.Sampled(800, EXACT), lw.Full(view="weights")):
        posterior = case.fit(lw.Laplace(case.likelihood, structure=structure))
        chosen.append(lw.tune(posterior, lw.Validation(held_out(case), link="probit", **METHOD)).trace[-1])
    assert chosen[0].prior_precision == pytest.approx(chosen[1].prior_precision)
    assert chosen[0].validation_nll == pytest.approx(chosen[1].validation_nll, rel=0.02)
    assert chosen[0].effective_dimension == pytest.approx(chosen[1].effective_dimension, rel=0.1)
