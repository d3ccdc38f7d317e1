"""The estimators as scikit-learn uses them."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import load_diabetes
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from sklearn.model_selection import GridSearchCV, cross_val_predict, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

import lapwing as lw
from lapwing.gp import RBF, Columns, Hamming
from lapwing.ground.errors import ConfigError, DataError, NumericalError, ShapeError, UnsupportedError
from lapwing.integrations.sklearn import GPClassifier, GPRegressor, LaplaceClassifier, LaplaceRegressor
from tests.integrations.pages import run_page
from tests.posterior_cases import refused

QUICK: dict[str, Any] = {"tune": False, "epochs": 25, "rate": 0.1, "batch_size": 1000}
"""A linear network, trained in a hundredth of a second and not tuned: what checks that fit a hundred times afford."""

UNEQUAL = {
    "check_sample_weight_equivalence_on_dense_data": "the noise to start from is a tenth of the spread of the rows "
    "given, and copies change it; of one noise it is the same posterior, as the test of weights shows"
}

ROWS = np.random.default_rng(0).normal(size=(40, 3)) * [1.0, 100.0, 1.0]
SIDES = np.where(ROWS[:, 0] + 0.01 * ROWS[:, 1] > 0, "right", "left")
WAVES = np.sin(2 * ROWS[:, 0])


@pytest.mark.filterwarnings("ignore")
def test_a_process_is_an_estimator() -> None:
    """Without the search, which would run a hundred times."""
    check_estimator(GPRegressor(kernel=None, tune=False), expected_failed_checks=UNEQUAL, on_skip=None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "estimator",
    [LaplaceClassifier(nn.Linear, **QUICK), LaplaceRegressor(nn.Linear, **QUICK), GPClassifier(tune=False)],
    ids=lambda estimator: type(estimator).__name__,
)
def test_each_is_an_estimator(estimator: BaseEstimator) -> None:
    pytest.importorskip("pandas", reason="some of scikit-learn's checks need pandas, and all of them take seconds")
    check_estimator(estimator, on_skip=None)


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


# ---- networks --------------------------------------------------------------------------------------------------------


def test_networks_are_searched_cloned_and_pickled_as_any_estimator() -> None:
    pipeline = make_pipeline(StandardScaler(), LaplaceClassifier(nn.Linear, epochs=40, tune=False))
    grid = GridSearchCV(pipeline, {"laplaceclassifier__rate": [1e-9, 0.1]}, cv=2).fit(ROWS, SIDES)
    assert grid.best_params_ == {"laplaceclassifier__rate": 0.1} and grid.score(ROWS, SIDES) > 0.9
    again = pickle.loads(pickle.dumps(grid.best_estimator_))
    np.testing.assert_array_equal(again.predict_proba(ROWS), grid.predict_proba(ROWS))
    assert clone(again[-1]).get_params() == grid.best_estimator_[-1].get_params()
    probabilities = cross_val_predict(grid.best_estimator_, ROWS, SIDES, cv=2, method="predict_proba")
    assert probabilities.shape == (40, 2)
    np.testing.assert_allclose(probabilities.sum(1), 1.0)
    assert ((probabilities[:, 1] > 0.5) == (SIDES == "right")).mean() > 0.85


def test_a_regressor_knows_what_it_does_not_know() -> None:
    x = np.linspace(-1, 1, 60)[:, None]
    noise = 0.1 * np.random.default_rng(0).normal(size=60)
    regressor = LaplaceRegressor().fit(x, np.sin(3 * x[:, 0]) + noise)
    assert regressor.score(x, np.sin(3 * x[:, 0])) > 0.97
    _, std = regressor.predict([[0.0], [6.0]], return_std=True)
    assert 0.07 < std[0] < 0.15 and std[1] > 2 * std[0]
    assert len(regressor.posterior_.trace) > 0


def test_a_module_is_copied_to_be_trained_and_taken_as_it_is_where_it_was() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    before = [value.clone() for value in module.parameters()]
    trained = LaplaceRegressor(module, epochs=5, tune=False).fit(ROWS, WAVES)
    assert all(bool((now == then).all()) for now, then in zip(module.parameters(), before, strict=True))
    assert trained.posterior_.network.like.dtype == torch.float64
    taken = LaplaceRegressor(module, prefit=True, tune=False).fit(ROWS, WAVES)
    rest = WAVES - module(torch.tensor(ROWS))[:, 0].detach().numpy()
    recipe = lw.Laplace(lw.Gaussian(float(1 / (rest**2).mean())))
    posterior = recipe.fit(module, (torch.tensor(ROWS), torch.tensor(WAVES)[:, None]))
    mean, std = taken.predict(ROWS, return_std=True)
    expected: Any = posterior.predict(torch.tensor(ROWS))
    np.testing.assert_allclose(mean, expected.mean[:, 0], rtol=1e-12)
    np.testing.assert_allclose(std, expected.std[:, 0], rtol=1e-9)


def test_what_it_is_made_of_reaches_the_recipe() -> None:
    chosen = {"structure": lw.KFAC(), "weights": lw.LastLayer(), "prior": lw.Isotropic(7.0)}
    regressor = LaplaceRegressor(epochs=2, tune=False, **chosen).fit(ROWS, WAVES)
    assert regressor.posterior_.network.size == 101 and regressor.posterior_.prior == lw.Isotropic(7.0)
    tuned = LaplaceClassifier(nn.Linear, epochs=2, tune=lw.EvidenceGradient(steps=1)).fit(ROWS, SIDES)
    assert tuned.posterior_.trace and tuned.posterior_.network.like.dtype == torch.float64
    single = LaplaceClassifier(nn.Linear, epochs=2, tune=False, dtype=torch.float32).fit(ROWS, SIDES)
    assert single.posterior_.network.like.dtype == torch.float32


def test_the_same_seed_trains_the_same_network_and_disturbs_no_other() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first, second, third = (
        LaplaceRegressor(epochs=2, tune=False, random_state=seed).fit(ROWS, WAVES).predict(ROWS) for seed in (1, 1, 2)
    )
    assert torch.rand(1) == expected
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - third).max() > 1e-3


def test_what_cannot_be_is_refused() -> None:
    with refused(ConfigError, "prefit=True"):
        LaplaceRegressor(prefit=True).fit(ROWS, WAVES)
    with refused(ConfigError, "module='mlp'"):
        LaplaceRegressor("mlp").fit(ROWS, WAVES)
    with refused(DataError, "one class"):
        LaplaceClassifier().fit(ROWS, np.ones(40))
    with refused(NumericalError, "a network that trains"):
        LaplaceRegressor(rate=1e200, epochs=3, standardise=False).fit(ROWS, WAVES)
    for estimator in (LaplaceRegressor(), LaplaceClassifier(), GPClassifier()):
        with refused(UnsupportedError, "Got sample_weight=. Try GPRegressor"):
            estimator.fit(ROWS, SIDES, sample_weight=np.ones(40))
    with refused(ConfigError, "rate"):
        LaplaceRegressor(rate=-1).fit(ROWS, WAVES)
    with refused(ConfigError, "weight_decay of 0 or more"):
        LaplaceRegressor(weight_decay=-1).fit(ROWS, WAVES)
    normed = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    for size in (1, 2):
        with refused(ConfigError, "for a batch norm"):
            LaplaceRegressor(normed, batch_size=size).fit(ROWS[:39], WAVES[:39])
    with refused(ConfigError, "return_cov"):
        GPRegressor(tune=False).fit(ROWS, WAVES).predict(ROWS, return_std=True, return_cov=True)


def test_a_trained_network_names_its_own_classes() -> None:
    """Those of its outputs, not those that the data happen to have."""
    x = np.repeat([[-2.0, 0.0], [0.0, 2.0], [2.0, 0.0]], 10, 0) + 0.1 * np.random.default_rng(0).normal(size=(30, 2))
    y = np.repeat(["a", "b", "c"], 10)
    network = nn.Linear(2, 3).double()
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[-3.0, 0.0], [0.0, 3.0], [3.0, 0.0]]))
        network.bias.zero_()
    with refused(ShapeError, "outputs [2, 2], one a class. Got [2, 3]. Try classes="):
        LaplaceClassifier(network, prefit=True, tune=False).fit(x[10:], y[10:])
    classifier = LaplaceClassifier(network, prefit=True, tune=False, classes=["a", "b", "c"]).fit(x[10:], y[10:])
    assert classifier.score(x, y) == 1.0 and classifier.classes_.tolist() == ["a", "b", "c"]
    turned = LaplaceClassifier(network, prefit=True, tune=False, classes=["c", "b", "a"]).fit(x[10:], y[10:])
    assert turned.predict(x[:1]).tolist() == ["c"]
    made = LaplaceClassifier(nn.Linear, epochs=2, tune=False, classes=["c", "b", "a"]).fit(x[10:], y[10:])
    assert made.predict_proba(x[:2]).shape == (2, 3)
    for classes in (["a", "b"], ["a", "b", "c", "c"]):
        with refused(DataError, "different classes, among them those of the labels, ['b', 'c']"):
            LaplaceClassifier(network, prefit=True, classes=classes).fit(x[10:], y[10:])


@pytest.mark.parametrize("outputs", [2, 5])
def test_a_module_with_other_outputs_than_classes_is_refused(outputs: int) -> None:
    labels = np.arange(40) % 3
    with refused(ShapeError, f"outputs [2, 3], one a class. Got [2, {outputs}]"):
        LaplaceClassifier(nn.Linear(3, outputs)).fit(ROWS, labels)
    with refused(ShapeError, f"outputs [2, 1], one a target. Got [2, {outputs}]"):
        LaplaceRegressor(nn.Linear(3, outputs)).fit(ROWS, WAVES)
    with refused(ShapeError, "a module that takes rows of 3 numbers in torch.float32"):
        LaplaceClassifier(nn.Linear(4, 3)).fit(ROWS, labels)


def test_a_net_of_skorch_trains_itself() -> None:
    skorch = pytest.importorskip("skorch", reason="skorch is not installed")
    options = {"train_split": None, "verbose": 0, "max_epochs": 60, "lr": 0.5}
    torch.manual_seed(0)
    net = skorch.NeuralNetClassifier(nn.Linear(3, 2), criterion=nn.CrossEntropyLoss, **options)
    classifier = LaplaceClassifier(net, tune=False).fit(ROWS, SIDES)
    assert classifier.score(ROWS, SIDES) > 0.9 and not hasattr(net, "module_")
    assert clone(classifier).fit(ROWS, SIDES).score(ROWS, SIDES) > 0.9
    net.fit(ROWS.astype(np.float32) / 100, (SIDES == "right").astype(np.int64))
    prefit = clone(LaplaceClassifier(FrozenEstimator(net), prefit=True, tune=False)).fit(ROWS / 100, SIDES)
    assert prefit.posterior_.network.like.dtype == torch.float32
    torch.testing.assert_close(prefit.posterior_.network.weights[:6].view(2, 3), net.module_.weight.detach())
    regression = skorch.NeuralNetRegressor(nn.Linear(3, 1), **options | {"lr": 0.1})
    assert LaplaceRegressor(regression, tune=False).fit(ROWS, ROWS[:, 0]).score(ROWS, ROWS[:, 0]) > 0.9
    with refused(ShapeError, "outputs [2, 3], one a class. Got [2, 2]"):
        LaplaceClassifier(net).fit(ROWS, np.arange(40) % 3)
    probabilities = skorch.NeuralNetClassifier(nn.Sequential(nn.Linear(3, 2), nn.Softmax(-1)), **options)
    with refused(UnsupportedError, "criterion=torch.nn.CrossEntropyLoss"):
        LaplaceClassifier(probabilities).fit(ROWS, SIDES)


# ---- covariances, weights, classes and tables ------------------------------------------------------------------------


def test_covariances_are_those_of_scikit_learn() -> None:
    x = StandardScaler().fit_transform(ROWS)
    y = StandardScaler().fit_transform(WAVES[:, None])[:, 0]
    kernel = sk.Matern([1.0, 1.0, 1.0], nu=1.5) + sk.WhiteKernel(0.1)
    theirs = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(x, y)
    ours = GPRegressor(lw.gp.Matern((1.0, 1.0, 1.0)), mean="zero", tune=False).fit(x, y)
    np.testing.assert_allclose(ours.predict(x[:5], return_cov=True)[1], theirs.predict(x[:5], return_cov=True)[1])


@pytest.mark.parametrize("estimator", [GPRegressor(tune=False), LaplaceRegressor(nn.Linear, **QUICK)])
def test_covariances_have_standard_deviations_on_their_diagonal(estimator: Any) -> None:
    y = np.stack([WAVES, 10 + 5 * ROWS[:, 2]], 1)
    fitted = estimator.fit(ROWS, y)
    mean, std = fitted.predict(ROWS[:6], return_std=True)
    again, covariance = fitted.predict(ROWS[:6], return_cov=True)
    np.testing.assert_allclose(again, mean, rtol=1e-9)
    assert covariance.shape == (6, 6, 2)
    np.testing.assert_allclose(np.sqrt(np.einsum("iic->ic", covariance)), std, rtol=1e-6)
    flat = clone(estimator).fit(ROWS, y[:, 1])
    assert flat.predict(ROWS[:6], return_cov=True)[1].shape == (6, 6)


def test_an_observation_of_weight_two_is_two_observations() -> None:
    counts = np.random.default_rng(1).integers(0, 4, size=40)
    kernel = lw.gp.RBF((1.0, 1.0, 1.0))
    weighted = GPRegressor(kernel, tune=False).fit(ROWS, WAVES, sample_weight=counts)
    x, y = np.repeat(ROWS, counts, 0), np.repeat(WAVES, counts)
    likelihood = weighted.posterior_.likelihood
    scaled = [StandardScaler().fit(values) for values in (x, y[:, None])]
    recipe = lw.GP(kernel, likelihood, mean="constant")
    repeated = recipe.fit((torch.tensor(scaled[0].transform(x)), torch.tensor(scaled[1].transform(y[:, None]))))
    expected: Any = repeated.predict(torch.tensor(scaled[0].transform(ROWS)))
    mean, std = weighted.predict(ROWS, return_std=True)
    np.testing.assert_allclose(mean, scaled[1].inverse_transform(expected.mean)[:, 0], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(std, scaled[1].scale_ * expected.std[:, 0].numpy(), rtol=1e-7)


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_of_a_process_are_those_of_the_process(classes: int) -> None:
    names = np.array(["c", "a", "b"])
    y = names[np.digitize(ROWS[:, 2], [0.0, 0.9][: classes - 1])]
    classifier = GPClassifier(tune=False).fit(ROWS, y)
    assert list(classifier.classes_) == sorted(set(y)) and classifier.score(ROWS, y) > 0.9
    x = torch.tensor(StandardScaler().fit_transform(ROWS))
    labels = torch.tensor(np.searchsorted(classifier.classes_, y))
    process: Any = lw.GP(None, lw.Bernoulli() if classes == 2 else lw.Categorical()).fit((x, labels))
    probs = process.predict(x).probs.numpy()
    np.testing.assert_allclose(classifier.predict_proba(ROWS)[:, -1], probs[:, -1], rtol=1e-9)
    assert classifier.predict_proba(ROWS).shape == (40, classes)
    if classes == 2:
        assert GPClassifier(tune=lw.gp.Evidence(steps=2)).fit(ROWS, y).posterior_.trace


def test_categories_are_not_standardised_and_meet_themselves_in_another_dtype() -> None:
    r = np.random.default_rng(0)
    numbers = np.array([0.1, 0.2, 0.7])[r.integers(3, size=30)]
    x = np.stack([r.normal(2.0, 3.0, 30), numbers], 1).astype(np.float32)
    y = 10 * x[:, 1] + 0.1 * x[:, 0]
    kernel = Columns(RBF(1.0), (0,)) * Columns(Hamming(0.2), (1,))
    regressor = GPRegressor(kernel, tune=False).fit(x, y)
    new = np.array([[2.0, 0.1], [2.0, 0.2], [2.0, 0.7]])
    np.testing.assert_allclose(regressor.predict(new), regressor.predict(new.astype(np.float32)), rtol=1e-4)
    assert set(regressor.posterior_.data.inputs[:, 1].tolist()) == set(x[:, 1].tolist())
    classifier = GPClassifier(kernel, tune=False).fit(x, y > 3)
    assert set(classifier.posterior_.data.inputs[:, 1].tolist()) == set(x[:, 1].tolist())


def test_a_column_of_words_and_bad_weights_are_refused() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"a": WAVES, "b": SIDES})
    for estimator in (LaplaceRegressor(), LaplaceClassifier(), GPRegressor(), GPClassifier()):
        with refused(DataError, "OneHotEncoder"):
            estimator.fit(frame, SIDES if "Classifier" in type(estimator).__name__ else WAVES)
    with refused(ShapeError, "sample_weight of shape [40]"):
        GPRegressor().fit(ROWS, WAVES, sample_weight=np.ones(3))
    for weights in (np.zeros(40), -np.ones(40)):
        with refused(DataError, "sample_weight of zero or more"):
            GPRegressor().fit(ROWS, WAVES, sample_weight=weights)


def test_tables_of_pandas_are_known_by_their_names() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pandas.DataFrame(ROWS, columns=["a", "b", "c"], index=range(100, 140))
    sides = pandas.Series(SIDES, index=table.index, dtype="category")
    scaler = StandardScaler().set_output(transform="pandas")
    pipeline = make_pipeline(scaler, LaplaceClassifier(nn.Linear, **QUICK)).fit(table, sides)
    assert list(pipeline[-1].feature_names_in_) == ["a", "b", "c"] and pipeline.score(table, sides) > 0.9
    targets = pandas.DataFrame({"wave": WAVES, "other": ROWS[:, 2]}, index=table.index)
    regressor = GPRegressor(tune=False).fit(table, targets)
    assert regressor.predict(table).shape == (40, 2)
    with pytest.raises(ValueError, match="feature names"):
        regressor.predict(table[["b", "a", "c"]])


@pytest.mark.parametrize("estimator", [LaplaceRegressor(nn.Linear, **QUICK), GPRegressor(tune=False)])
def test_mapie_conforms_them_as_they_are(estimator: Any) -> None:
    pytest.importorskip("mapie", reason="MAPIE is not installed")
    from mapie.conformity_scores import ResidualNormalisedScore
    from mapie.regression import SplitConformalRegressor

    source = np.random.default_rng(2)
    x = source.uniform(-1, 1, size=(300, 2))
    y = x[:, 0] + (0.05 + 0.5 * (x[:, 1] > 0)) * source.normal(size=300)
    score = ResidualNormalisedScore(residual_estimator=clone(estimator), random_state=0)
    conformal = SplitConformalRegressor(clone(estimator), 0.9, score, prefit=False)
    conformal.fit(x[:100], y[:100]).conformalize(x[100:200], y[100:200])
    _, intervals = conformal.predict_interval(x[200:])
    low, high = intervals[:, 0, 0], intervals[:, 1, 0]
    assert 0.8 < ((low < y[200:]) & (y[200:] < high)).mean() < 0.98
    loud = x[200:, 1] > 0
    assert (high - low)[loud].mean() > 1.5 * (high - low)[~loud].mean()


def test_the_page_runs(tmp_path: Path) -> None:
    names = run_page("sklearn", tmp_path)
    assert (names["std"] > 0).all() and len(names["std"]) == 20
    assert np.allclose(names["covariance"], names["covariance"].T) and names["covariance"].shape == (20, 20)
    assert np.allclose(names["probabilities"].sum(1), 1.0)
