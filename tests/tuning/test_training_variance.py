"""By default prior and noise agree with what a structure says of outputs at training inputs."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ground.errors import ConvergenceWarning, DataWarning
from lapwing.jacobian.limits import Limits
from lapwing.tuning.training_variance import information, mended_by_training_variance, training_examples
from lapwing.tuning.tune import default
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


def noises(posterior: lw.Posterior) -> Tensor:
    """Noise precisions, one or one an output."""
    assert isinstance(posterior.likelihood, lw.Gaussian)
    return torch.as_tensor(posterior.likelihood.precision, dtype=torch.float64)


def variance_over_noise(posterior: lw.Posterior, x: Tensor) -> Tensor:
    """Of each output, means over the inputs."""
    return (posterior.predict(x).outputs.variance * noises(posterior)).mean(0)


@OUTPUTS
@pytest.mark.parametrize(
    "structure", [lw.LowRank(3), lw.Nystrom(3, samples=90)], ids=["low rank", "few tangent features"]
)
def test_few_directions_get_the_weakest_prior_that_keeps_to_the_bound(outputs: int, structure: Any) -> None:
    problem, posterior = fitted(outputs, structure)
    by_evidence = lw.tune(posterior, lw.EvidenceGradient())
    tuned = lw.tune(posterior)
    assert variance_over_noise(by_evidence, problem.x).mean() > 2.0
    assert float(variance_over_noise(tuned, problem.x).mean()) == pytest.approx(1.0, abs=1e-3)
    assert tuned.likelihood == by_evidence.likelihood
    assert float(tuned.prior_precisions) > float(by_evidence.prior_precisions)
    assert tuned.trace[-1].prior_precision == pytest.approx(tuned.prior_precisions.tolist())


@pytest.mark.parametrize("structure", [lw.LowRank(3), lw.Nystrom(3, samples=90)], ids=["low rank", "tangent features"])
def test_noise_that_depends_on_the_input_keeps_to_the_bound_too(structure: Any) -> None:
    problem = case(2)
    recipe = lw.Laplace(lw.HeteroscedasticGaussian(), structure=structure)
    posterior = recipe.fit(problem.model, (problem.x, problem.y[:, :1]))
    tuned = lw.tune(posterior)
    for after, low, high in ((lw.tune(posterior, lw.EvidenceGradient()), 1.3, math.inf), (tuned, 0.999, 1.001)):
        (outputs,) = after.outputs_each(problem.x, [after])
        precision = torch.stack([torch.exp(-outputs.mean[:, 1]), torch.full_like(outputs.mean[:, 1], 0.5)], dim=1)
        assert low < float((precision * outputs.variance).mean()) < high
    layers = replace(recipe, structure=lw.KFAC()).fit(problem.model, (problem.x, problem.y[:, :1]))
    by_evidence = lw.tune(layers, lw.EvidenceGradient(noise="residuals"))
    assert float(lw.tune(layers).prior_precisions) == float(by_evidence.prior_precisions)


def test_a_prior_slightly_beyond_the_bound_is_brought_back() -> None:
    problem, posterior = fitted(1, lw.LowRank(3))
    tuned = lw.tune(posterior)
    weaker = tuned.with_prior_factor(0.7)
    assert 1.1 < variance_over_noise(weaker, problem.x).mean() < 1.5
    again = mended_by_training_variance(weaker, False)
    torch.testing.assert_close(again.prior_precisions, tuned.prior_precisions, rtol=1e-3, atol=0.0)


def test_solves_and_predictions_by_draws_stay_as_they_are() -> None:
    _, posterior = fitted(1, lw.LowRank(3))
    weak = posterior.with_hyperparameters(lw.Isotropic(1e-2), posterior.likelihood)
    assert mended_by_training_variance(weak, False) is not weak
    drawn = replace(weak, model=replace(weak.model, limits=Limits(jacobian=1)))
    assert mended_by_training_variance(drawn, False) is drawn
    _, solved = fitted(1, lw.Sampled(4))
    assert mended_by_training_variance(solved, False) is solved


@OUTPUTS
@pytest.mark.parametrize("view", ["weights", "functions"])
def test_the_whole_curvature_keeps_to_it(outputs: int, view: Any) -> None:
    problem, posterior = fitted(outputs, lw.Full(view=view))
    weak = posterior.with_hyperparameters(lw.Isotropic(1e-3), posterior.likelihood)
    assert 0.1 < variance_over_noise(weak, problem.x).mean() < 1.0
    assert mended_by_training_variance(weak, False) is weak


@pytest.mark.parametrize("view", ["weights", "functions"])
def test_the_rounding_of_single_precision_is_no_reason_for_another_prior(view: Any) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 1))).float()
    x = normal(60, 3).float()
    recipe = lw.Laplace(lw.Gaussian(1e8), prior=lw.Isotropic(1e-4), structure=lw.Full(view=view))
    posterior = recipe.fit(model, (x, model(x).detach() + 1e-2 * normal(60, 1, seed=1).float()))
    found = information(posterior, posterior.outputs_each(x, [posterior]))
    assert 0.99 < float(found.mean()) < 1.05
    assert mended_by_training_variance(posterior, False) is posterior


def test_is_the_effective_dimension_over_the_observations() -> None:
    problem, posterior = fitted(2, lw.Full())
    here = posterior.outputs_each(problem.x, [posterior])
    dimension = float(posterior.effective_dimension())
    assert float(information(posterior, here).mean()) == pytest.approx(dimension / problem.y.numel(), rel=1e-6)


@pytest.mark.parametrize("structure", [lw.KFAC(), lw.EKFAC()], ids=["kfac", "ekfac"])
@pytest.mark.parametrize("shared", [False, True], ids=["a noise each", "one noise"])
def test_layers_apart_have_the_noise_of_residuals_over_what_fitting_left(structure: Any, shared: bool) -> None:
    problem = case(2)
    likelihood = lw.Gaussian(shared=True) if shared else lw.Gaussian()
    posterior = lw.Laplace(likelihood, structure=structure).fit(problem.model, (problem.x, problem.y))
    by_residuals = lw.tune(posterior, lw.EvidenceGradient(noise="residuals"))
    tuned = lw.tune(posterior)
    added = variance_over_noise(by_residuals, problem.x)
    expected = noises(by_residuals) / (1.0 + (added.mean() if shared else added))
    torch.testing.assert_close(noises(tuned), expected, rtol=1e-5, atol=0.0)
    assert float(expected.max()) < 0.99 * float(noises(by_residuals).max())
    best = lw.tune(tuned, lw.EvidenceGradient(noise=False))
    torch.testing.assert_close(tuned.prior_precisions, best.prior_precisions, rtol=1e-4, atol=0.0)


def test_independent_weights_keep_the_noise_of_residuals() -> None:
    _, posterior = fitted(1, lw.Diagonal())
    by_residuals = lw.tune(posterior, lw.EvidenceGradient(noise="residuals"))
    assert noises(lw.tune(posterior)) == noises(by_residuals)


@pytest.mark.parametrize(
    "structure", [lw.KFAC(), lw.structures.TridiagonalKFAC(), lw.LowRank(3), lw.Nystrom(3, samples=40)]
)
def test_warns_where_training_data_are_wanted_and_not_there(tmp_path: Path, structure: Any) -> None:
    problem, posterior = fitted(1, structure)
    lw.save(posterior, tmp_path / "posterior.safetensors")
    alone = lw.load(tmp_path / "posterior.safetensors", problem.model)
    with pytest.warns(DataWarning, match=r"Try load\(path, model, data\)"):
        tuned = lw.tune(alone)
    torch.testing.assert_close(tuned.prior_precisions, lw.tune(posterior, default(posterior)).prior_precisions)


@pytest.mark.parametrize(
    "structure",
    [lw.Full(), lw.Full(view="functions"), lw.Diagonal(), lw.Nystrom(3, samples=40, residual=False)],
    ids=["weights", "functions", "diagonal", "without residual"],
)
def test_is_silent_where_they_would_change_nothing(tmp_path: Path, structure: Any) -> None:
    problem, posterior = fitted(1, structure)
    lw.save(posterior, tmp_path / "posterior.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        tuned = lw.tune(lw.load(tmp_path / "posterior.safetensors", problem.model))
    torch.testing.assert_close(tuned.prior_precisions, lw.tune(posterior).prior_precisions)


def test_warns_where_the_strongest_prior_does_not_keep_to_the_bound() -> None:
    problem, posterior = fitted(1, lw.LowRank(3))
    weak = posterior.with_hyperparameters(lw.Isotropic(1e-10), lw.Gaussian(100.0))
    with pytest.warns(ConvergenceWarning, match="the most that is tried"):
        tuned = mended_by_training_variance(weak, False)
    assert float(tuned.prior_precisions) == pytest.approx(1e-2)
    assert variance_over_noise(tuned, problem.x).mean() > 1.0


def test_examples_lie_evenly_over_all_batches() -> None:
    problem = case(1)
    batches = [(x, y) for x, y in zip(problem.x.split(20), problem.y.split(20), strict=True)]
    posterior = lw.Laplace(problem.likelihood, structure=lw.LowRank(3)).fit(problem.model, batches)
    (found,) = training_examples(posterior, 10)
    assert isinstance(found.inputs, Tensor)
    assert torch.equal(found.inputs, problem.x[torch.linspace(0, 89, 10).round().long()])


def test_an_interruption_keeps_what_the_evidence_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    _, posterior = fitted(1, lw.LowRank(3))
    by_evidence = lw.tune(posterior, lw.EvidenceGradient())

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("lapwing.tuning.training_variance.within_noise", interrupted)
    with pytest.warns(lw.ConvergenceWarning, match="interrupted"):
        tuned = lw.tune(posterior)
    assert torch.equal(tuned.prior_precisions, by_evidence.prior_precisions)


@pytest.mark.parametrize(
    ("structure", "lost"),
    [(lw.LowRank(3), True), (lw.Nystrom(1, samples=90), True), (lw.LowRank(30), False), (lw.Full(), False)],
)
def test_held_out_data_that_take_the_prior_for_noise_are_warned_of(structure: Any, lost: bool) -> None:
    """Beside few directions the prior's variance explains residuals as well as noise does, which then has no size."""
    problem = case(1)
    x = normal(20, 3, seed=5)
    held_out = (x, problem.model(x).detach() + 0.3 * normal(20, 1, seed=6))
    posterior = lw.Laplace(lw.Gaussian(100.0), structure=structure).fit(problem.model, (problem.x, problem.y))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        tuned = lw.tune(posterior, held_out)
    assert any("was taken for the noise" in str(warning.message) for warning in caught) == lost
    times = float(variance_over_noise(tuned, problem.x))
    assert times > 1e3 if lost else times < 1.0
