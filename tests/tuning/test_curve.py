"""Evidence curves against the evidence itself, dense densities of the data and a dense search for the mode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

import lapwing as lw
from lapwing.ground.errors import ConfigError, ConvergenceWarning, ShapeError, UnsupportedError
from lapwing.linalg import functions
from lapwing.linalg.lanczos import lanczos
from lapwing.linear.problem import Perturbation
from lapwing.posteriors import MatrixFreePosterior, SampledPosterior
from lapwing.tuning import curve as room
from lapwing.tuning.curve import EvidenceCurve, evidence_curve
from tests.posterior_cases import STRUCTURES, Linearised, prior_for, problem, refused

VALUES = [3.0, 0.02, 40.0]
"""In no order."""


def fitted(name: str, structure: str = "full-weights") -> lw.Posterior:
    case = problem(name)
    return case.fit(lw.Laplace(case.likelihood, structure=STRUCTURES[structure]))


def grouped(posterior: lw.Posterior, kind: str) -> lw.Posterior:
    """With a prior of this kind."""
    return posterior.with_choices(prior_for(kind, posterior.network.uncertain), posterior.likelihood)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", ["gaussian", "categorical"])
def test_at_the_weights_it_is_the_evidence_of_each_prior(name: str, structure: str) -> None:
    posterior = fitted(name, structure)
    curve = evidence_curve(posterior, VALUES)
    expected = [posterior.with_choices(lw.Isotropic(a), posterior.likelihood).log_marginal() for a in VALUES]
    assert curve.log_marginal.tolist() == pytest.approx(expected, rel=1e-12)
    assert curve.precisions.tolist() == VALUES
    assert curve.stderr.tolist() == [0.0] * 3


def test_every_group_takes_the_precision() -> None:
    posterior = grouped(fitted("gaussian"), "layerwise")
    assert len(set(posterior.prior_precisions.tolist())) == 2
    expected = [posterior.with_choices(lw.Layerwise((a, a)), posterior.likelihood).log_marginal() for a in VALUES]
    assert evidence_curve(posterior, VALUES).log_marginal.tolist() == pytest.approx(expected, rel=1e-12)


def dense_evidence(case, posterior: lw.Posterior, prior: Tensor, target: str) -> float:
    """``log N(y; offset, J A⁻¹ Jᵀ + B⁻¹ / s)`` of the tangent model."""
    dense = Linearised(case, posterior.network)
    f, j = dense.outputs(case.x), dense.jacobian(case.x)
    offset = f - torch.einsum("ncd,d->nc", j, dense.theta) if target == "affine" else torch.zeros_like(f)
    noise = 1 / posterior.likelihood.precisions(f).expand(f.shape)
    rows = j.flatten(0, 1)
    covariance = (rows / prior) @ rows.mT + torch.diag(noise.flatten())
    return float(torch.distributions.MultivariateNormal(offset.flatten(), covariance).log_prob(case.y.flatten()))


@pytest.mark.parametrize(
    ("kind", "target"),
    [("isotropic", "simplified"), ("layerwise", "affine"), ("diagonal", "affine"), ("g-prior", "simplified")],
)
def test_at_the_mode_it_is_the_evidence_of_the_tangent_model(kind: str, target: str) -> None:
    case, posterior = problem("gaussian-per-output"), grouped(fitted("gaussian-per-output"), kind)
    noisier = replace(posterior.likelihood, precision=(0.2, 1.2))
    posterior = posterior.with_choices(posterior.prior, noisier)
    expected = []
    for value in VALUES:
        rows = torch.full_like(posterior.prior_precisions, value)
        prior = posterior.prior.with_precisions(rows).diagonal(posterior.network.uncertain, rows)
        expected.append(dense_evidence(case, posterior, prior, target))
    curve = evidence_curve(posterior, VALUES, at="mode", target=target)
    assert curve.log_marginal.tolist() == pytest.approx(expected, rel=1e-9)


def test_the_mode_of_classes() -> None:
    case, posterior = problem("categorical"), fitted("categorical")
    dense = Linearised(case, posterior.network)
    f, j = dense.outputs(case.x), dense.jacobian(case.x)
    targets = case.likelihood.canonical_targets(f, case.y)

    def loss(w: Tensor, a: float) -> Tensor:
        h = f + torch.einsum("ncd,d->nc", j, w - dense.theta)
        return case.likelihood.nll(h, targets).sum() + 0.5 * a * w.square().sum()

    def objective(x: np.ndarray, a: float) -> tuple[float, np.ndarray]:
        w = torch.tensor(x, requires_grad=True)
        value = loss(w, a)
        return value.item(), torch.autograd.grad(value, w)[0].numpy()

    expected = []
    for a in VALUES:
        found = minimize(objective, dense.theta.numpy(), (a,), jac=True, options={"gtol": 1e-9})
        charge = torch.logdet(torch.eye(len(dense.theta)).double() + dense.ggn / a)
        expected.append(-found.fun - 0.5 * float(charge))
    curve = evidence_curve(posterior, VALUES, at="mode")
    assert curve.log_marginal.tolist() == pytest.approx(expected, rel=1e-8)
    weights = evidence_curve(posterior, VALUES).log_marginal
    assert (curve.log_marginal > weights).all()


@pytest.mark.parametrize("structure", ["kfac", "full-functions"])
def test_the_mode_is_that_of_the_tangent_model_whatever_holds_the_covariance(structure: str) -> None:
    fits = []
    for posterior in (fitted("categorical"), fitted("categorical", structure)):
        ratio, precisions = posterior.evidence.complexity.log_det_ratio, torch.tensor(VALUES, dtype=torch.float64)
        charge = torch.stack([0.5 * ratio(a, posterior.scale) for a in precisions.split(1)])
        fits.append(evidence_curve(posterior, VALUES, at="mode").log_marginal + charge)
    torch.testing.assert_close(fits[0], fits[1], rtol=1e-9, atol=0)


def test_a_solver_may_be_chosen_for_the_mode() -> None:
    posterior = fitted("gaussian")
    expected = evidence_curve(posterior, VALUES, at="mode").log_marginal
    solver = lw.CG(rtol=1e-3, preconditioner=lw.PivotedCholesky(5))
    torch.testing.assert_close(
        evidence_curve(posterior, VALUES, at="mode", solver=solver).log_marginal, expected, rtol=1e-8, atol=0
    )


def test_the_best_precision_is_near_that_of_the_evidence_gradient() -> None:
    posterior = fitted("gaussian")
    best = lw.tune(posterior, lw.EvidenceGradient(noise=False))
    curve = evidence_curve(posterior, np.geomspace(0.03, 30, 16).tolist())
    assert curve.inside
    assert curve.best == pytest.approx(float(best.prior_precisions), rel=0.05)
    assert curve.largest == pytest.approx(best.log_marginal(), abs=0.01)


def curve_of(precisions: list[float], values: list[float]) -> EvidenceCurve:
    y = torch.tensor(values).double()
    return EvidenceCurve(torch.tensor(precisions).double(), y, torch.zeros_like(y), "weights")


def test_a_curve_that_rises_to_its_end_is_best_there() -> None:
    for precisions in ([1.0, 2.0, 9.0], [9.0, 1.0, 2.0]):
        curve = curve_of(precisions, precisions)
        assert (curve.best, curve.largest, curve.inside) == (9.0, 9.0, False)
    assert curve_of([4.0], [-3.0]).best == 4.0


def test_precisions_given_twice_or_equal_values_leave_no_doubt() -> None:
    assert curve_of([1.0, 2.0, 2.0, 4.0], [0.0, 5.0, 5.0, 1.0]).best == 2.0
    assert curve_of([1.0, 2.0, 4.0], [5.0, 5.0, 5.0]).largest == 5.0


def test_bad_input_is_refused() -> None:
    posterior = fitted("gaussian")
    with refused(ConfigError, "positive finite prior precisions"):
        evidence_curve(posterior, [1.0, -1.0])
    with refused(ShapeError, "vector of precisions"):
        evidence_curve(posterior, torch.tensor(1.0))
    without = replace(posterior, model=replace(posterior.model, source=None))
    with refused(UnsupportedError, "training data"):
        evidence_curve(without, VALUES, at="mode")
    assert evidence_curve(without, VALUES).log_marginal.isfinite().all()


FOUR = [*VALUES, 0.5]
SOLVER = lw.CG(rtol=1e-9)


def both(name: str, structure: lw.structures.Structure) -> tuple[lw.Posterior, lw.Posterior]:
    """An exact posterior and another, with a prior of two groups."""
    case = problem(name)
    recipe = lw.Laplace(case.likelihood, prior=lw.Layerwise((2.0, 5.0)), structure=lw.Full(view="weights"))
    return case.fit(recipe), case.fit(replace(recipe, structure=structure))


def white(posterior: SampledPosterior) -> SampledPosterior:
    """With noise whose sample covariance is the identity: what is linear in the covariance of the draws is exact."""
    problem, like = posterior.problem, posterior.network.like
    rows, size = problem.root.shape[1], problem.size
    noise = (rows + size) ** 0.5 * torch.eye(rows + size).to(like)
    perturbation = Perturbation(problem.root @ noise[:rows], noise[rows:])
    return replace(posterior, perturbation=perturbation, initial=None, found=None)


@pytest.mark.parametrize("at", ["weights", "mode"])
def test_draws_of_exact_covariance_give_the_exact_curve(at: str) -> None:
    exact, sampled = (
        it.with_choices(it.prior, lw.Gaussian(0.4)) for it in both("gaussian", lw.Sampled(4, solver=SOLVER))
    )
    assert isinstance(sampled, SampledPosterior)
    found = evidence_curve(white(sampled), FOUR, at=at)
    expected = evidence_curve(exact, FOUR, at=at)
    torch.testing.assert_close(found.log_marginal, expected.log_marginal, rtol=0, atol=2e-3)


def test_draws_give_the_curve_of_their_own_estimates() -> None:
    _, sampled = both("categorical", lw.Sampled(16, solver=SOLVER))
    curve = evidence_curve(sampled, FOUR)
    for value, found, error in zip(FOUR, curve.log_marginal, curve.stderr, strict=True):
        own = sampled.with_choices(lw.Layerwise(value), sampled.likelihood).log_marginal()
        assert float(found) == pytest.approx(own.value, abs=2e-3)
        assert float(error) == pytest.approx(own.stderr, rel=2e-2)


def test_probes_give_the_curve_within_their_errors() -> None:
    exact, free = (it.with_choices(it.prior, lw.Gaussian(7.0)) for it in both("gaussian", lw.MatrixFree(solver=SOLVER)))
    curve = evidence_curve(free, FOUR, samples=64)
    off = (curve.log_marginal - evidence_curve(exact, FOUR).log_marginal).abs()
    assert (curve.stderr > 0).all() and (off <= 4 * curve.stderr).all()
    assert (curve.stderr < 1.5).all()
    again = evidence_curve(free, FOUR, samples=64)
    torch.testing.assert_close(again.log_marginal, curve.log_marginal)
    other = evidence_curve(free, FOUR, samples=64, seed=1)
    assert (other.log_marginal != curve.log_marginal).all()


def test_one_recurrence_serves_all_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What many precisions say is what each says by itself, at the price of one."""
    _, free = both("categorical", lw.MatrixFree(solver=SOLVER))
    calls = []
    monkeypatch.setattr(functions, "lanczos", lambda *args, **options: calls.append(1) or lanczos(*args, **options))
    curve = evidence_curve(free, FOUR, samples=8)
    assert len(calls) == 1
    assert isinstance(free, MatrixFreePosterior)
    for value, found, error in zip(FOUR, curve.log_marginal, curve.stderr, strict=True):
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


def test_the_probes_are_the_same_for_every_precision() -> None:
    _, free = both("gaussian", lw.MatrixFree(solver=SOLVER))
    curve = evidence_curve(free, [1.0, 1.0 + 1e-6], samples=2)
    assert abs(float(curve.log_marginal.diff())) < 1e-4 < float(curve.stderr[0])


def test_one_probe_has_no_error_and_is_refused() -> None:
    _, free = both("gaussian", lw.MatrixFree())
    with refused(ConfigError, "samples of at least 2"):
        evidence_curve(free, FOUR, samples=1)
