"""The regressor as scikit-learn uses it."""

from __future__ import annotations

import pickle
import time

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import lapwing as lw
from lapwing.gp.sklearn import GPRegressor
from lapwing.ground.errors import ConfigError
from tests.posterior_cases import refused


@pytest.mark.filterwarnings("ignore")
def test_it_is_an_estimator() -> None:
    """Without the search, which would run a hundred times."""
    check_estimator(GPRegressor(kernel=None, tune=False))


def test_grids_clones_and_pickles_are_of_the_same_regressor() -> None:
    x = np.random.default_rng(0).normal(size=(45, 2)) * [1.0, 100.0]
    y = np.sin(2 * x[:, 0])
    kernels = [lw.gp.RBF((1.0, 1.0)), lw.gp.RBF((9.0, 0.1))]
    pipeline = make_pipeline(StandardScaler(), GPRegressor(tune=False))
    grid = GridSearchCV(pipeline, {"gpregressor__kernel": kernels}, cv=3).fit(x, y)
    assert grid.best_params_ == {"gpregressor__kernel": kernels[0]}
    mean, std = grid.predict(x), grid.best_estimator_.predict(x, return_std=True)[1]
    again = pickle.loads(pickle.dumps(grid.best_estimator_))
    np.testing.assert_allclose(again.predict(x, return_std=True), (mean, std), rtol=1e-12)
    assert clone(again[-1]).get_params() == grid.best_estimator_[-1].get_params()


@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")
def test_it_is_tuned_as_told(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).normal(size=(30, 2))
    part, whole = (GPRegressor(tune=how).fit(x, np.sin(x[:, 0])) for how in (lw.gp.Subset(10), True))
    assert not capsys.readouterr().err
    assert part.posterior_.trace[-2].log_marginal != whole.posterior_.trace[-1].log_marginal
    shown = GPRegressor(tune=lw.gp.Subset(10), progress=True).fit(x, np.sin(x[:, 0]))
    assert shown.posterior_.trace == part.posterior_.trace and "evidence" in capsys.readouterr().err
    with refused(ConfigError, "Subset, Centroids. Got str 'no'"):
        GPRegressor(tune="no").fit(x, x)


def test_it_keeps_its_seconds_and_says_what_they_left_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for tens of thousands of rows: a part for the hyper-parameters, and a solve that is not exact."""
    searches, search = list[int](), lw.gp.Subset.tune
    monkeypatch.setattr(lw.gp.Subset, "tune", lambda self, *args: (searches.append(self.steps), search(self, *args))[1])
    source = np.random.default_rng(0)
    x = source.normal(size=(400, 8))
    y = np.sin(x[:, 0]) + 1e-4 * source.normal(size=400)
    with pytest.warns(lw.ConvergenceWarning) as told:
        regressor = GPRegressor(seconds=1e-3)
        solver = lw.solvers.CG(rtol=1e-2, preconditioner=lw.preconditioners.PivotedCholesky(500))
        begun = time.perf_counter()
        process = lw.GP(solver=solver, seed=1).fit((x, y))
        tuned = regressor._tuned(process, None, most=100, part=lw.gp.Subset(80))
        solved = regressor._solved(tuned, begun)
    messages = [str(each.message) for each in told]
    assert any("seconds=0.001 allowed 1 of 100 steps" in message for message in messages)
    assert searches == [1], "no step more where the first took longer than half of the seconds"
    begun = time.perf_counter()
    solved.predict(x[:3])
    assert time.perf_counter() - begun < 1.0, "solves are made by fit"
    assert isinstance(solved.solver, lw.solvers.CG) and solved.solver.seconds == 1.0
    with refused(ConfigError, "seconds"):
        GPRegressor(seconds=0.0).fit(x, y)


def test_one_observation_chooses_nothing() -> None:
    regressor = GPRegressor().fit([[2.0]], [3.0])
    assert regressor.predict([[2.0]]) == pytest.approx([3.0])


@pytest.mark.parametrize("count", [7, 40])
def test_a_column_that_is_alike_in_training_has_the_scale_one(count: int) -> None:
    x = np.stack([np.linspace(0, 6, count), np.full(count, 0.1)], 1)
    regressor = GPRegressor(tune=False).fit(x, np.sin(x[:, 0]))
    np.testing.assert_allclose(regressor.predict(x + np.array([0.0, 0.05])), regressor.predict(x), atol=0.01)


def test_it_predicts_as_scikit_learn_does_with_the_same_kernel() -> None:
    x, y = load_diabetes(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(x, y, train_size=120, random_state=0)
    ours = make_pipeline(StandardScaler(), GPRegressor(mean="zero")).fit(train_x, train_y)
    kernel = sk.ConstantKernel(1.0) * sk.Matern([10**0.5] * 10, (1e-4, 1e5), nu=1.5) + sk.WhiteKernel(0.1)
    theirs = make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, alpha=0.0, normalize_y=True))
    theirs.fit(train_x, train_y)
    assert ours.score(test_x, test_y) == pytest.approx(theirs.score(test_x, test_y), abs=0.02)
    mean, std = ours.predict(test_x, return_std=True)
    inside = np.abs(test_y - mean) < 1.96 * std
    assert 0.88 < inside.mean() < 0.99
    assert ours[-1].sample_y(ours[:-1].transform(test_x), 5).shape == (len(test_x), 5)


@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")  # it is not solved: that takes seconds
def test_tables_are_read_in_double_precision_at_every_size() -> None:
    x = np.linspace(0, 1, 5_001)[:, None]
    large = GPRegressor(tune=False, samples=2, solver=lw.solvers.CG(rtol=0.5)).fit(x, x[:, 0])
    assert large.posterior_.data.targets.dtype == torch.float64
    single = GPRegressor(tune=False, dtype=torch.float32).fit(x[:50], x[:50, 0]).posterior_
    assert single.data.targets.dtype == single.settings.dtype == torch.float32


def test_each_output_has_the_noise_that_a_fit_of_its_own_has() -> None:
    generator = np.random.default_rng(0)
    x = np.linspace(-2, 2, 40)[:, None]
    y = np.concatenate([np.sin(2 * x), np.sin(2 * x)], 1) + generator.normal(size=(40, 2)) * [0.01, 1.0]
    deviations = GPRegressor(tune=lw.gp.Evidence()).fit(x, y).predict(x, return_std=True)[1].mean(0)
    np.testing.assert_allclose(deviations, [0.01, 1.0], rtol=0.4)
