"""By default outputs at training inputs vary no more than their noise, as under the whole curvature."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.tuning.training_variance import mean_information, training_examples, within_noise
from tests.posterior_cases import Problem, normal, seeded

OUTPUTS = pytest.mark.parametrize("outputs", [1, 2])


def case(outputs: int) -> Problem:
    """A perceptron of 97 weights or more at ninety inputs in order, all of them looked at."""
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, outputs)))
    x = normal(90, 3).sort(dim=0).values
    y = model(x).detach() + 0.1 * normal(90, outputs, seed=1)
    return Problem(model, lw.Gaussian(), x, y, normal(5, 3, seed=2))


def fitted(outputs: int, structure: Any) -> tuple[Problem, lw.Posterior]:
    problem = case(outputs)
    return problem, problem.fit(lw.Laplace(problem.likelihood, structure=structure))


def information(posterior: lw.Posterior, x: Tensor) -> float:
    """The mean of variance over noise variance."""
    noises = torch.as_tensor(posterior.likelihood.precision)
    return float((posterior.predict(x).outputs.variance * noises).mean())


@OUTPUTS
@pytest.mark.parametrize(
    "structure", [lw.LowRank(3), lw.Nystrom(3, samples=90)], ids=["low rank", "few tangent features"]
)
def test_few_directions_get_the_weakest_prior_that_keeps_to_the_bound(outputs: int, structure: Any) -> None:
    problem, posterior = fitted(outputs, structure)
    by_evidence = lw.tune(posterior, lw.EvidenceGradient())
    tuned = lw.tune(posterior)
    assert information(by_evidence, problem.x) > 2.0
    assert information(tuned, problem.x) == pytest.approx(1.0, abs=1e-3)
    assert tuned.likelihood == by_evidence.likelihood
    assert float(tuned.prior_precisions) > float(by_evidence.prior_precisions)
    assert tuned.trace[-1].prior_precision == pytest.approx(tuned.prior_precisions.tolist())


@OUTPUTS
@pytest.mark.parametrize("view", ["weights", "functions"])
def test_the_whole_curvature_keeps_to_it(outputs: int, view: Any) -> None:
    problem, posterior = fitted(outputs, lw.Full(view=view))
    weak = posterior.with_hyperparameters(lw.Isotropic(1e-3), posterior.likelihood)
    assert 0.1 < information(weak, problem.x) < 1.0
    assert within_noise(weak) is weak


def test_is_the_effective_dimension_over_the_observations() -> None:
    problem, posterior = fitted(2, lw.Full())
    here = posterior.outputs_each(problem.x, [posterior])
    dimension = float(posterior.effective_dimension())
    assert mean_information(posterior, here) == pytest.approx(dimension / problem.y.numel(), rel=1e-6)


def test_structures_that_leave_out_correlations_are_left_to_their_residuals() -> None:
    _, posterior = fitted(1, lw.KFAC())
    weak = posterior.with_hyperparameters(lw.Isotropic(1e-6), posterior.likelihood)
    assert within_noise(weak) is weak


def test_examples_lie_evenly_over_all_batches() -> None:
    problem = case(1)
    batches = [(x, y) for x, y in zip(problem.x.split(20), problem.y.split(20), strict=True)]
    posterior = lw.Laplace(problem.likelihood, structure=lw.LowRank(3)).fit(problem.model, batches)
    (found,) = training_examples(posterior, 10)
    assert isinstance(found.inputs, Tensor)
    assert torch.equal(found.inputs, problem.x[torch.linspace(0, 89, 10).round().long()])
