"""A linear network is Bayesian linear regression, a kernel matrix a Gaussian process: scikit-learn has both.

Both take the weights at the posterior mode, so the network is given scikit-learn's weights, or its evidence is taken
``at="mode"`` from any weights at all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.ground.errors import UnsupportedError
from lapwing.linalg import Dense, Diagonal
from lapwing.linalg.log_determinant import log_determinant
from lapwing.linear.preconditioners import GivenCurvature
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import Solver
from lapwing.posteriors import WeightPosterior
from lapwing.predictive import Regression
from tests.operators import GramMatrix
from tests.posterior_cases import normal, seeded

sklearn_process = pytest.importorskip("sklearn.gaussian_process")
sklearn_linear = pytest.importorskip("sklearn.linear_model")

PRIOR, NOISE = 0.4, 3.0
VIEWS = {"weights": lw.Full(view="weights"), "functions": lw.Full(view="functions")}


def data(n: int = 40, d: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs and targets that are not centred, and new inputs."""
    x = 1.5 + normal(n, d) * torch.linspace(0.5, 2.0, d, dtype=torch.float64)
    y = x @ normal(d, 1, seed=1) + 0.5 * normal(n, 1, seed=2)
    return x, y, 1.5 + normal(7, d, seed=3)


def linear(weights: np.ndarray | None = None, d: int = 5) -> nn.Module:
    model = seeded(lambda: nn.Linear(d, 1, bias=False))
    if weights is not None:
        with torch.no_grad():
            model.weight.copy_(torch.as_tensor(weights))
    return model


def fit(model: nn.Module, structure: lw.structures.Structure, prior: float, noise: float) -> lw.Posterior:
    x, y, _ = data()
    recipe = lw.Laplace(lw.Gaussian(noise), prior=lw.Isotropic(prior), structure=structure)
    return recipe.fit(model, (x, y))


@pytest.mark.parametrize("view", VIEWS)
def test_full_posterior_is_a_gaussian_process(view: str) -> None:
    """K = x xᵀ / α is a scaled DotProduct kernel; the network has the process's mean only at its mode."""
    x, y, new = data()
    kernels = sklearn_process.kernels
    kernel = kernels.ConstantKernel(1 / PRIOR, "fixed") * kernels.DotProduct(0.0, "fixed")
    process = sklearn_process.GaussianProcessRegressor(kernel, alpha=1 / NOISE, optimizer=None).fit(x, y.ravel())
    mode = torch.linalg.solve(NOISE * x.mT @ x + PRIOR * torch.eye(5), NOISE * x.mT @ y).ravel()
    posterior = fit(linear(mode.numpy()), VIEWS[view], PRIOR, NOISE)
    mean, covariance = process.predict(new, return_cov=True)
    prediction = posterior.predict(new, joint=True)
    assert isinstance(prediction, Regression)
    close(prediction.mean.squeeze(-1), mean)
    close(prediction.outputs.covariance.reshape(7, 7), covariance)
    assert posterior.log_marginal() == pytest.approx(process.log_marginal_likelihood_value_, rel=1e-9)


def test_evidence_at_the_mode_is_that_of_the_gaussian_process_whatever_the_weights() -> None:
    x, y, _ = data()
    kernels = sklearn_process.kernels
    kernel = kernels.ConstantKernel(1 / PRIOR, "fixed") * kernels.DotProduct(0.0, "fixed")
    process = sklearn_process.GaussianProcessRegressor(kernel, alpha=1 / NOISE, optimizer=None).fit(x, y.ravel())
    posterior = fit(linear(), VIEWS["weights"], PRIOR, NOISE)
    assert isinstance(posterior, WeightPosterior)
    evidence = replace(posterior.evidence, shift=posterior.mode_shift)
    exact = process.log_marginal_likelihood_value_
    assert float(evidence.log_marginal(posterior.prior_precisions, posterior.scale)) == pytest.approx(exact, rel=1e-9)
    assert posterior.log_marginal() < exact - 1


@pytest.mark.parametrize("structure", [*VIEWS.values(), lw.KFAC()], ids=["weights", "functions", "kfac"])
def test_predicts_like_bayesian_ridge_at_its_hyperparameters(structure: lw.structures.Structure) -> None:
    """KFAC is exact here: one output, one position, so G ⊗ A is ρ ⊗ xᵀx."""
    _, _, new = data()
    ridge = bayesian_ridge()
    posterior = fit(linear(ridge.coef_), structure, float(ridge.lambda_), float(ridge.alpha_))
    check_predictions(posterior, ridge, new)
    assert posterior.log_marginal() == pytest.approx(ridge.scores_[-1], rel=1e-6)


@pytest.mark.parametrize("start", [(1.0, 1.0), (30.0, 0.02)], ids=["near", "far"])
@pytest.mark.parametrize("structure", [lw.Full(view="weights"), lw.KFAC()], ids=["full", "kfac"])
@pytest.mark.parametrize("method", ["MacKay", "EvidenceGradient"])
def test_tuning_is_bayesian_ridge(method: str, structure: lw.structures.Structure, start: tuple[float, float]) -> None:
    _, _, new = data()
    ridge = bayesian_ridge()
    prior, noise = start
    tuned = lw.tune(fit(linear(ridge.coef_), structure, prior, noise), getattr(lw, method)(at="mode"))
    assert isinstance(tuned.prior, lw.Isotropic) and isinstance(tuned.likelihood, lw.Gaussian)
    assert tuned.prior.precision == pytest.approx(ridge.lambda_, rel=1e-6)
    assert tuned.likelihood.precision == pytest.approx(ridge.alpha_, rel=1e-6)
    assert tuned.trace[-1].log_marginal == pytest.approx(ridge.scores_[-1], rel=1e-6)
    check_predictions(tuned, ridge, new)


@pytest.mark.parametrize("method", ["MacKay", "EvidenceGradient"])
def test_tuning_at_the_mode_does_not_depend_on_the_weights(method: str) -> None:
    ridge = bayesian_ridge()
    tuned = lw.tune(fit(linear(), lw.Full(view="weights"), 1.0, 1.0), getattr(lw, method)(at="mode"))
    assert isinstance(tuned.prior, lw.Isotropic)
    assert tuned.prior.precision == pytest.approx(ridge.lambda_, rel=1e-6)
    assert tuned.trace[-1].log_marginal == pytest.approx(ridge.scores_[-1], rel=1e-6)


def bayesian_ridge():
    """Flat hyperpriors, no intercept, run to convergence; its last score is the evidence at the final values."""
    x, y, _ = data()
    flat = dict.fromkeys(("alpha_1", "alpha_2", "lambda_1", "lambda_2"), 0.0)
    ridge = sklearn_linear.BayesianRidge(max_iter=10_000, tol=1e-13, fit_intercept=False, compute_score=True, **flat)
    return ridge.fit(x.numpy(), y.numpy().ravel())


def check_predictions(posterior: lw.Posterior, ridge, new: Tensor) -> None:
    """Means of the network and standard deviations with noise."""
    mean, std = ridge.predict(new.numpy(), return_std=True)
    prediction = posterior.predict(new)
    assert isinstance(prediction, Regression)
    close(prediction.mean.squeeze(-1), mean, 1e-6)
    close(prediction.std.squeeze(-1), std, 1e-6)


def close(actual: Tensor, expected: np.ndarray, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=tolerance, atol=tolerance)


def near(x: Tensor, other: Tensor) -> Tensor:
    """Half the kernel matrix, and a little on its diagonal: what a bad preconditioner looks like."""
    return 0.5 * torch.exp(-torch.cdist(x, other).square() / 8) + 0.1 * torch.eye(len(x), dtype=torch.float64)


def solvers(x: Tensor) -> dict[str, Solver]:
    """Every solver, and every preconditioner that needs a matrix and no features."""
    recipes = {
        "no preconditioner": None,
        "greedy pivots": lw.preconditioners.PivotedCholesky(9),
        "random pivots": lw.preconditioners.PivotedCholesky(9, "random", block=4),
        "eigenpairs": lw.LowRank(9),
        "sketch": lw.LowRank(9, method="nystrom"),
        "diagonal": lw.Diagonal(),
        "known": GivenCurvature(Dense(near(x, x))),
    }
    found: dict[str, Solver] = {
        name: lw.solvers.CG(rtol=1e-11, preconditioner=recipe) for name, recipe in recipes.items()
    }
    return found | {"descent": lw.solvers.SGD(epochs=4000, rtol=1e-9, momentum=0.97)}


@pytest.mark.parametrize("name", list(solvers(torch.zeros(2, 5).double())))
def test_a_kernel_alone_is_a_gaussian_process(name: str) -> None:
    """``I + B^½ K B^½`` with K given, no features: mean, variance and evidence by products."""
    x, y, new = data(d=5)
    y, noise = y.ravel(), 6.0
    kernel = sklearn_process.kernels.RBF(2.0, "fixed")
    process = sklearn_process.GaussianProcessRegressor(kernel, alpha=1 / noise, optimizer=None).fit(x, y)
    mean, covariance = (torch.as_tensor(part) for part in process.predict(new, return_cov=True))
    k, cross, prior = (torch.exp(-torch.cdist(a, b).square() / 8) for a, b in ((x, x), (x, new), (new, new)))
    problem = Problem(GramMatrix(Dense(k)), Diagonal(torch.ones(len(x), dtype=torch.float64)), noise)
    solution = solvers(x)[name].solve(problem, noise * torch.cat([y[:, None], cross], 1))
    assert solution.converged
    torch.testing.assert_close(cross.mT @ solution.value[:, 0], mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(prior - cross.mT @ solution.value[:, 1:], covariance, rtol=1e-6, atol=1e-6)
    log_det = log_determinant(problem.precision, preconditioner=Dense(problem.precision.dense())).value
    constant = len(x) * (np.log(noise) - np.log(2 * np.pi)) / 2
    evidence = constant - 0.5 * log_det - 0.5 * float(y @ solution.value[:, 0])
    assert evidence == pytest.approx(process.log_marginal_likelihood_value_, rel=1e-7)


@pytest.mark.parametrize(
    "recipe",
    [lw.preconditioners.Subsample(3), lw.preconditioners.TopRows(3), lw.preconditioners.RankOne(), lw.KFAC()],
    ids=str,
)
def test_what_needs_features_says_so_of_a_kernel(recipe: lw.preconditioners.Subsample) -> None:
    problem = Problem(GramMatrix(Dense(torch.eye(3).double())), Diagonal(torch.ones(3).double()))
    with pytest.raises(UnsupportedError, match=r"a problem with a (linear model and data|network) for"):
        recipe.approximate(problem)


@pytest.mark.parametrize(
    "method", [lw.EvidenceGradient(at="mode"), lw.MacKay(at="mode"), lw.EM(tolerance=1e-3)], ids=str
)
def test_outputs_with_weights_of_their_own_are_as_many_regressions(method: lw.tuning.Method) -> None:
    """With a prior for the layer of each output, evidence has a maximum for each, which ``BayesianRidge`` climbs to."""

    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Linear(5, 1, bias=False) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.first(x), self.second(x)], 1)

    x, y, _ = data()
    y = torch.cat([y, x @ normal(5, 1, seed=6) + 2.0 * normal(40, 1, seed=7)], 1)
    tuned = lw.tune(lw.Laplace(lw.Gaussian(), prior=lw.Layerwise()).fit(seeded(Apart), (x, y)), method)
    assert isinstance(tuned.likelihood, lw.Gaussian)
    for k in range(2):
        options = {"alpha_1": 0, "alpha_2": 0, "lambda_1": 0, "lambda_2": 0, "fit_intercept": False, "tol": 1e-10}
        found = sklearn_linear.BayesianRidge(max_iter=1000, **options).fit(x.numpy(), y[:, k].numpy())
        assert tuned.likelihood.noise_precision[k] == pytest.approx(found.alpha_, rel=3e-3)
        assert float(tuned.prior_precisions[k]) == pytest.approx(found.lambda_, rel=1e-2)
