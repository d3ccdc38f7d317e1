"""ELLA is what its theory says: exact with all pairs, its closed form with M = K, within its bound for every draw."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import ConfigError, NumericalError, TooLargeError, UnsupportedError
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.survey import find_layers
from lapwing.structures import FitTask
from tests.posterior_cases import Linearised, Problem, labels, mlp, normal, problem, refused, seeded

VARIANCE = 1 / 0.7


def fitted(case: Problem, *, precision: float = 0.7, **options: Any) -> lw.posteriors.NystromPosterior:
    recipe = lw.Laplace(case.likelihood, prior=lw.Isotropic(precision), structure=lw.Nystrom(**options))
    posterior = case.fit(recipe)
    assert isinstance(posterior, lw.posteriors.NystromPosterior)
    return posterior


def task_of(case: Problem) -> FitTask:
    """What a structure is given."""
    network, data = Network.of(case.model), Data((case.x, case.y))
    survey = find_layers(network, data.first())
    return FitTask(Model(network, survey, case.likelihood, data), lw.Isotropic(0.7), lw.GGN(), None)


def all_of(size: int) -> dict[str, Any]:
    """So many landmarks, and every direction they span."""
    return {"rank": size, "samples": size, "tolerance": 1e-13}


@cache
def dense(name: str) -> tuple[Problem, Linearised, Tensor, Tensor]:
    """A problem, its linear model, and all rows of its Jacobian and their output Hessian, block diagonal."""
    case = problem(name)
    model = Linearised(case, fitted(case, rank=1, samples=2).network)
    f = model.outputs(case.x)
    hessians = case.likelihood.hessian(f, case.likelihood.canonical_targets(f, case.y)).flatten(0, -3)
    return case, model, model.jacobian(case.x).flatten(0, -2), torch.block_diag(*hessians)


def landmark_rows(posterior: lw.posteriors.NystromPosterior, rows: Tensor) -> Tensor:
    """``J̃``: the rows that the report says were taken."""
    outputs = posterior.survey.output.numel()
    examples, chosen = posterior.report.pairs.unbind(1)
    return rows[examples * outputs + chosen]


def covariance_of(posterior: lw.posteriors.NystromPosterior, x: Tensor) -> Tensor:
    """Of each example and position."""
    return posterior.outputs_each(x, [posterior])[0].covariance


def errors_of(posterior: lw.posteriors.NystromPosterior, rows: Tensor) -> float:
    """``|J J̃ᵀ (J̃ J̃ᵀ)⁺ J̃ Jᵀ - J Jᵀ|``: the Nyström error of the tangent kernel, spectral norm."""
    some = landmark_rows(posterior, rows)
    cross = rows @ some.mT
    found = cross @ torch.linalg.pinv(some @ some.mT, hermitian=True, rtol=1e-12) @ cross.mT
    return float(torch.linalg.matrix_norm(found - rows @ rows.mT, 2))


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("name", ["gaussian", "categorical", "images", "tokens"])
def test_with_all_pairs_it_is_the_exact_posterior(name: str, residual: bool) -> None:
    case = problem(name)
    full = case.fit(lw.Laplace(case.likelihood, prior=lw.Isotropic(0.7), structure=lw.Full(view="weights")))
    mine = fitted(case, **all_of(1000), residual=residual)
    x = case.new if residual else case.x
    (exact,) = full.outputs_each(x, [full])
    (ours,) = mine.outputs_each(x, [mine])
    torch.testing.assert_close(ours.mean, exact.mean)
    torch.testing.assert_close(ours.covariance, exact.covariance, rtol=1e-6, atol=1e-6)
    assert mine.log_marginal() == pytest.approx(full.log_marginal(), abs=1e-6)
    assert mine.effective_dimension() == pytest.approx(full.effective_dimension(), abs=1e-6)


@pytest.mark.parametrize("landmarks", ["uniform", "leverage", "pivoted"])
@pytest.mark.parametrize("size", [3, 8])
@pytest.mark.parametrize("name", ["gaussian", "categorical"])
def test_with_as_many_directions_as_landmarks_it_is_the_closed_form(name: str, size: int, landmarks: Any) -> None:
    """``κ = J J̃ᵀ [J̃ J_Xᵀ Λ J_X J̃ᵀ + J̃ J̃ᵀ / σ²]⁻¹ J̃ Jᵀ`` (Deng et al. 2022, section 4)."""
    case, model, rows, hessian = dense(name)
    posterior = fitted(case, **all_of(size), residual=False, landmarks=landmarks)
    assert posterior.report.kept == size
    some = landmark_rows(posterior, rows)
    cross = rows @ some.mT
    inner = cross.mT @ hessian @ cross + some @ some.mT / VARIANCE
    new = model.new[1]
    pushed = new @ some.mT
    expected = pushed @ torch.linalg.solve(inner, pushed.mT)
    torch.testing.assert_close(covariance_of(posterior, case.new), expected, rtol=1e-8, atol=1e-8)
    beside = VARIANCE * (new @ new.mT - pushed @ torch.linalg.solve(some @ some.mT, pushed.mT))
    whole = covariance_of(fitted(case, **all_of(size), landmarks=landmarks), case.new)
    torch.testing.assert_close(whole, expected + beside, rtol=1e-8, atol=1e-8)


def test_keeps_the_leading_directions_and_says_which_eigenvalues_there_are() -> None:
    case, model, rows, hessian = dense("categorical")
    posterior = fitted(case, rank=4, samples=12, residual=False)
    some = landmark_rows(posterior, rows) * VARIANCE**0.5
    values, vectors = torch.linalg.eigh(some @ some.mT)
    torch.testing.assert_close(posterior.report.eigenvalues, values.flip(0), rtol=1e-9, atol=1e-9)
    directions = some.mT @ (vectors[:, -4:] / values[-4:].sqrt())
    features = [VARIANCE**0.5 * j @ directions for j in (rows, model.new[1])]
    inner = features[0].mT @ hessian @ features[0] + torch.eye(4, dtype=torch.float64)
    expected = features[1] @ torch.linalg.solve(inner, features[1].mT)
    torch.testing.assert_close(covariance_of(posterior, case.new), expected, rtol=1e-8, atol=1e-8)
    kernel = VARIANCE * rows @ rows.mT
    missed = 1 - features[0].square().sum() / kernel.trace()
    assert posterior.report.error.value == pytest.approx(float(missed), rel=1e-9)
    wholes, seen = (it.view(len(case.x), -1).sum(1) for it in (kernel.diagonal(), features[0].square()))
    spread = (wholes - seen - missed * wholes) / wholes.mean()
    assert posterior.report.error.stderr == pytest.approx(float(spread.std()) / len(spread) ** 0.5, rel=1e-9)
    assert posterior.report.error.samples == len(case.x)


@pytest.mark.parametrize("landmarks", ["uniform", "leverage", "pivoted"])
def test_the_error_decreases_in_the_landmarks(landmarks: Any) -> None:
    case, _, rows, _ = dense("categorical")
    task, means = task_of(case), []
    for size in (2, 6, 14, 30):
        seeds = [lw.Nystrom(**all_of(size), seed=seed, landmarks=landmarks).fit(task) for seed in range(3)]
        kernel = [
            errors_of(posterior, rows) for posterior in seeds if isinstance(posterior, lw.posteriors.NystromPosterior)
        ]
        trace = [
            posterior.report.error.value for posterior in seeds if isinstance(posterior, lw.posteriors.NystromPosterior)
        ]
        means.append((sum(kernel), sum(trace)))
    for before, after in pairwise(means):
        assert after[0] < before[0] and after[1] < before[1]
    assert means[-1][1] < 1e-9


def test_the_bound_of_the_theorem_holds_in_every_one_of_36_draws() -> None:
    """``|Σ' - Σ| ≤ σ⁴ c_Λ E' + σ²`` and ``E' ≤ λ_{M+1} + n c / √M c_κ (2 + log 1/δ)`` (Deng et al. 2022, theorem 1)."""
    case, _, rows, hessian = dense("categorical")
    exact = torch.linalg.inv(rows.mT @ hessian @ rows + torch.eye(rows.shape[1], dtype=torch.float64) / VARIANCE)
    kernel = rows @ rows.mT
    spectrum = torch.linalg.eigvalsh(kernel).flip(0)
    largest = float(torch.linalg.matrix_norm(hessian, 2))
    differences = []
    task = task_of(case)
    for seed in range(36):
        size = 2 + seed % 9
        posterior = lw.Nystrom(**all_of(size), seed=seed, residual=False).fit(task)
        assert isinstance(posterior, lw.posteriors.NystromPosterior)
        within = posterior.compression
        covariance = posterior.changes @ (within.root @ within.root.mT) @ posterior.changes.mT
        error = errors_of(posterior, rows)
        difference = float(torch.linalg.matrix_norm(covariance - exact, 2))
        assert difference <= VARIANCE**2 * largest * error + VARIANCE + 1e-12
        chance = len(kernel) / math.sqrt(size) * float(kernel.diagonal().max()) * (2 + math.log(20))
        assert error <= float(spectrum[size]) + chance
        differences.append(difference)
    assert max(differences) > 0.9 * VARIANCE  # the term σ² is real: nothing is left outside the span


class Bumps(nn.Module):
    """A linear model in bumps along the line: each weight matters near its bump alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 21))

    def forward(self, x: Tensor) -> Tensor:
        centres = torch.arange(-10, 11).to(x)
        return torch.exp(-((x - centres) ** 2)) @ self.weight.mT


def test_far_from_the_data_the_variance_is_the_priors_with_the_residual_and_nothing_without() -> None:
    x, new = normal(30, 1).clamp(-1.5, 1.5), torch.tensor([[0.0], [4.5], [7.5]], dtype=torch.float64)
    case = Problem(seeded(Bumps), lw.Gaussian(50.0), x, x.sin(), new)
    whole, part = (fitted(case, rank=6, samples=30, residual=residual) for residual in (True, False))
    prior = VARIANCE * Linearised(case, whole.network).new[1].square().sum((1, 2))
    with_it, without = (covariance_of(posterior, new).flatten() / prior for posterior in (whole, part))
    assert with_it[0] < 0.02 and without[0] < 0.02
    torch.testing.assert_close(with_it[2], torch.tensor(1.0).double(), rtol=1e-6, atol=0.0)
    assert without[2] < 1e-6
    assert without[1] < 0.05 and with_it[1] > 0.95


@pytest.mark.parametrize("landmarks", ["uniform", "leverage", "pivoted"])
def test_rows_that_do_not_fit_are_made_again(landmarks: Any) -> None:
    case = problem("images")
    usual = fitted(case, rank=5, samples=7, landmarks=landmarks)
    tight = fitted(case, rank=5, samples=7, landmarks=landmarks, max_bytes=8 * 28**2)
    torch.testing.assert_close(tight.report.eigenvalues, usual.report.eigenvalues)
    torch.testing.assert_close(covariance_of(tight, case.new), covariance_of(usual, case.new))


def test_the_error_of_the_features_is_a_ratio_with_the_error_of_one() -> None:
    """Against the jackknife."""
    case = replace(problem("gaussian"), x=normal(60, 3), y=normal(60, 2, seed=1))
    posterior = fitted(case, rank=5, samples=9)
    jacobian = Linearised(case, posterior.network).jacobian(case.x)
    whole = VARIANCE * jacobian.square().sum((1, 2))
    lost = whole - (jacobian @ posterior.changes).square().sum((1, 2))
    assert posterior.report.error.value == pytest.approx(float(lost.sum() / whole.sum()), rel=1e-9)
    without = (lost.sum() - lost) / (whole.sum() - whole)
    jackknife = ((without - without.mean()).square().sum() * 59 / 60).sqrt()
    assert posterior.report.error.stderr == pytest.approx(float(jackknife), rel=0.1)


def test_a_gram_matrix_that_does_not_fit_is_refused() -> None:
    with refused(TooLargeError, "391 bytes"):
        fitted(problem("images"), rank=5, samples=7, max_bytes=391)


def test_landmarks_differ_from_seed_to_seed_and_not_from_fit_to_fit() -> None:
    case = problem("images")
    first, again, other = (fitted(case, rank=3, samples=5, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.report.pairs, again.report.pairs) and torch.equal(first.changes, again.changes)
    assert not torch.equal(first.report.pairs, other.report.pairs)


def test_small_eigenvalues_are_left_out() -> None:
    case, _, rows, _ = dense("categorical")
    posterior = fitted(case, rank=30, samples=30, tolerance=0.05)
    values = torch.linalg.eigvalsh(rows @ rows.mT)
    assert posterior.report.kept == int((values > 0.05 * values[-1]).sum()) < 30


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_directions_of_small_eigenvalues_count_where_there_is_little_noise(dtype: torch.dtype) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))).to(dtype)
    x = torch.linspace(-1, 1, 40, dtype=dtype)[:, None]
    recipe = lw.Laplace(lw.Gaussian(1e6))
    everything = replace(recipe, structure=lw.Nystrom(rank=40)).fit(model, (x, x.sin()))
    exact = replace(recipe, structure=lw.Full()).fit(deepcopy(model).double(), (x.double(), x.double().sin()))
    ratio = everything.predict(x).outputs.variance.double() / exact.predict(x.double()).outputs.variance
    assert float((ratio - 1).abs().max()) < 1e-3


def test_a_network_in_single_precision_stays_near_the_one_in_double() -> None:
    case = problem("images")
    single = replace(
        case, model=mlp(3).float(), x=normal(40, 3).float(), y=labels(40, classes=3), new=normal(9, 3).float()
    )
    double = replace(single, model=mlp(3), x=single.x.double(), new=single.new.double())
    for precision in (1e-3, 1.0):
        ours, theirs = (fitted(it, rank=12, samples=40, precision=precision) for it in (single, double))
        assert ours.changes.dtype == torch.float32 and ours.compressed.dtype == torch.float64
        scale = float(covariance_of(theirs, double.new).abs().max())
        difference = covariance_of(ours, single.new).double() - covariance_of(theirs, double.new)
        assert float(difference.abs().max()) < 1e-3 * scale


def test_bad_options_get_a_sentence() -> None:
    with refused(ConfigError, "at least as many samples"):
        lw.Nystrom(20, samples=5)
    with refused(ConfigError, "tolerance"):
        lw.Nystrom(tolerance=0.0)
    with refused(ConfigError, "rank=1"):
        lw.Nystrom(0)
    case = problem("images")
    with refused(UnsupportedError, "Gauss-Newton"):
        case.fit(lw.Laplace(case.likelihood, structure=lw.Nystrom(2), curvature=lw.MCFisher()))


@pytest.mark.parametrize("landmarks", ["uniform", "leverage", "pivoted"])
def test_gradients_that_vanish_are_refused(landmarks: Any) -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return x + (0.0 * self.weight).sum()

    case = Problem(seeded(Constant), lw.Gaussian(), normal(6, 2), normal(6, 2, seed=1), normal(2, 2))
    with refused(NumericalError, "some output changes"):
        fitted(case, rank=1, samples=2, landmarks=landmarks)
