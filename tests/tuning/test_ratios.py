"""Evidence curves of posteriors without exact log determinants, against those that have them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import ConfigError, ConvergenceWarning
from lapwing.linalg import functions
from lapwing.linalg.lanczos import lanczos
from lapwing.linear.problem import Perturbation
from lapwing.posteriors import MatrixFreePosterior, SampledPosterior
from lapwing.tuning import curve as room
from lapwing.tuning.curve import evidence_curve
from tests.posterior_cases import Problem, problem, refused

VALUES = [3.0, 0.02, 40.0, 0.5]
SOLVER = lw.CG(rtol=1e-9)


def both(name: str, structure: lw.structures.Structure) -> tuple[lw.Posterior, lw.Posterior]:
    """An exact posterior and another, with a prior of two groups."""
    case: Problem = problem(name)
    recipe = lw.Laplace(case.likelihood, prior=lw.Layerwise((2.0, 5.0)), structure=lw.Full(view="weights"))
    return case.fit(recipe), case.fit(replace(recipe, structure=structure))


def white(posterior: SampledPosterior) -> SampledPosterior:
    """With noise whose sample covariance is the identity: what is linear in the covariance of the draws is exact."""
    problem, like = posterior.problem, posterior.network.like
    rows, size = problem.root.shape[1], problem.size
    noise = (rows + size) ** 0.5 * torch.eye(rows + size).to(like)
    perturbation = Perturbation(problem.root @ noise[:rows], noise[rows:])
    return replace(posterior, perturbation=perturbation, initial=None, found=None)


@pytest.mark.parametrize("group", [None, 1])
@pytest.mark.parametrize("at", ["weights", "mode"])
def test_draws_of_exact_covariance_give_the_exact_curve(at: str, group: int | None) -> None:
    exact, sampled = (
        it.with_choices(it.prior, lw.Gaussian(0.4)) for it in both("gaussian", lw.Sampled(4, solver=SOLVER))
    )
    assert isinstance(sampled, SampledPosterior)
    found = evidence_curve(white(sampled), VALUES, at=at, group=group)
    expected = evidence_curve(exact, VALUES, at=at, group=group)
    torch.testing.assert_close(found.log_marginal, expected.log_marginal, rtol=0, atol=2e-3)


def test_draws_give_the_curve_of_their_own_estimates() -> None:
    _, sampled = both("categorical", lw.Sampled(16, solver=SOLVER))
    curve = evidence_curve(sampled, VALUES)
    for value, found, error in zip(VALUES, curve.log_marginal, curve.stderr, strict=True):
        own = sampled.with_choices(lw.Layerwise(value), sampled.likelihood).log_marginal()
        assert float(found) == pytest.approx(own.value, abs=2e-3)
        assert float(error) == pytest.approx(own.stderr, rel=2e-2)


@pytest.mark.parametrize("group", [None, 1])
def test_probes_give_the_curve_within_their_errors(group: int | None) -> None:
    exact, free = (it.with_choices(it.prior, lw.Gaussian(7.0)) for it in both("gaussian", lw.MatrixFree(solver=SOLVER)))
    curve = evidence_curve(free, VALUES, samples=64, group=group)
    off = (curve.log_marginal - evidence_curve(exact, VALUES, group=group).log_marginal).abs()
    assert (curve.stderr > 0).all() and (off <= 4 * curve.stderr).all()
    assert (curve.stderr < 1.5).all()
    again = evidence_curve(free, VALUES, samples=64, group=group)
    torch.testing.assert_close(again.log_marginal, curve.log_marginal)
    other = evidence_curve(free, VALUES, samples=64, seed=1, group=group)
    assert (other.log_marginal != curve.log_marginal).all()


def test_one_recurrence_serves_all_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What many precisions say is what each says by itself, at the price of one."""
    _, free = both("categorical", lw.MatrixFree(solver=SOLVER))
    calls = []
    monkeypatch.setattr(functions, "lanczos", lambda *args, **options: calls.append(1) or lanczos(*args, **options))
    curve = evidence_curve(free, VALUES, samples=8)
    assert len(calls) == 1
    assert isinstance(free, MatrixFreePosterior)
    for value, found, error in zip(VALUES, curve.log_marginal, curve.stderr, strict=True):
        moved = free.with_choices(lw.Layerwise(value), free.likelihood)
        own = moved.log_marginal(8, generator=torch.Generator().manual_seed(0))
        assert float(found) == pytest.approx(own.value, abs=0.3 * own.stderr)
        assert float(error) == pytest.approx(own.stderr, rel=0.2)


def test_recurrences_cut_short_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    _, free = both("categorical", lw.MatrixFree(solver=SOLVER))
    whole = evidence_curve(free, [1e-3]).stderr
    monkeypatch.setattr(room, "STEPS", 6)
    with pytest.warns(ConvergenceWarning, match="last third of 6 Lanczos steps"):
        cut = evidence_curve(free, [1e-3]).stderr
    assert cut > 2 * whole


@pytest.mark.parametrize("group", [None, 1])
def test_the_probes_are_the_same_for_every_precision(group: int | None) -> None:
    _, free = both("gaussian", lw.MatrixFree(solver=SOLVER))
    curve = evidence_curve(free, [1.0, 1.0 + 1e-6], samples=2, group=group)
    assert abs(float(curve.log_marginal.diff())) < 1e-4 < float(curve.stderr[0])


def test_one_probe_has_no_error_and_is_refused() -> None:
    _, free = both("gaussian", lw.MatrixFree())
    with refused(ConfigError, "samples of at least 2"):
        evidence_curve(free, VALUES, samples=1)
