"""Bad input costs a sentence: what was expected, what came, what to try; never a NaN and never a traceback of torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.ground.errors import ConfigError, DataError, LapwingError, ShapeError, TooLargeError
from lapwing.ground.errors import UnsupportedError as Unsupported
from tests.posterior_cases import labels, mlp, normal, problem, refused

X, Y = normal(12, 3), labels(12, classes=3)


def with_entry(x: Tensor, value: float, row: int = 0) -> Tensor:
    changed = x.clone()
    changed[row, 0] = value
    return changed


def classify(model: nn.Module, data: Any, **options: Any) -> lw.Posterior:
    return lw.Laplace(lw.Categorical()).fit(model, data, **options)


class Wrapped(nn.Module):
    """A network whose outputs something is done with."""

    def __init__(self, change: Callable[[Tensor], Any], outputs: int = 3) -> None:
        super().__init__()
        self.inner = mlp(outputs)
        self.change = change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.inner(x))


@pytest.mark.parametrize("row", [0, 11])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_inputs_that_are_not_finite(bad: float, row: int) -> None:
    with refused(DataError, "finite inputs"):
        classify(mlp(3), (with_entry(X, bad, row), Y))


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_targets_that_are_not_finite(bad: float) -> None:
    with refused(DataError, "finite targets"):
        lw.Laplace(lw.Gaussian()).fit(mlp(3), (X, with_entry(X, bad)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("weights", [lw.All(), lw.LastLayer()])
def test_weights_that_are_not_finite(weights: Any, bad: float) -> None:
    model = mlp(3)
    with torch.no_grad():
        model[0].weight[1, 2] = bad
    with refused(DataError, "finite weights"):
        lw.Laplace(lw.Categorical(), weights=weights).fit(model, (X, Y))


def test_buffers_that_are_not_finite() -> None:
    case = problem("images")
    model = copy.deepcopy(case.model)
    model[1].running_mean[0] = float("nan")
    with refused(DataError, "finite outputs"):
        classify(model, (case.x, case.y))


@pytest.mark.parametrize("data", [[], (X[:0], Y[:0]), DataLoader(TensorDataset(X[:0], Y[:0]))])
def test_an_empty_loader(data: Any) -> None:
    with refused(DataError, "at least one example"):
        classify(mlp(3), data)


def test_a_second_fit_on_an_exhausted_iterator() -> None:
    batches = iter([(X, Y)])
    classify(mlp(3), batches)
    with refused(DataError, "at least one example"):
        classify(mlp(3), batches)


@pytest.mark.parametrize("label", [3, -1, 7])
def test_labels_outside_the_classes(label: int) -> None:
    y = Y.clone()
    y[4] = label
    got = f"1 labels outside, from {label} to {label}"
    with refused(DataError, got):
        classify(mlp(3), (X, y))


@pytest.mark.parametrize(
    ("likelihood", "change", "expected"),
    [
        (lw.Categorical(), lambda f: f[:, 0], "outputs of shape [n, ..., c]"),
        (lw.Categorical(), lambda f: f.mean(), "outputs of shape [n, ..., c]"),
        (lw.Categorical(), lambda f: f[:, None], "[n, c] for event_dim=0"),
        (lw.Categorical(event_dim=1), lambda f: f, "[n, e1, c] for event_dim=1"),
        (lw.Categorical(event_dim=1, class_dim=2), lambda f: f, "[n, e1, c] for event_dim=1"),
        (lw.Categorical(event_dim=2, class_dim=1), lambda f: f, "[n, c, e1, e2] for event_dim=2"),
    ],
)
def test_outputs_of_another_rank(likelihood: Any, change: Any, expected: str) -> None:
    with refused(ShapeError, expected):
        lw.Laplace(likelihood).fit(Wrapped(change), (X, Y))


@pytest.mark.parametrize(
    ("likelihood", "y", "kind", "expected"),
    [
        (lw.Categorical(), X, DataError, "integer class labels for Categorical"),
        (lw.Categorical(), Y.double(), DataError, "integer class labels for Categorical"),
        (lw.Categorical(), Y[:, None], ShapeError, "targets of shape [12]"),
        (lw.Gaussian(), Y, DataError, "real targets for Gaussian"),
        (lw.Gaussian(), X[:, :2], ShapeError, "targets of shape [12, 3]"),
        (lw.Poisson(), X, DataError, "counts 0, 1, 2"),
        (lw.Bernoulli(), X, DataError, "targets that are 0 or 1"),
    ],
)
def test_a_likelihood_for_other_targets(likelihood: Any, y: Tensor, kind: type[LapwingError], expected: str) -> None:
    with refused(kind, expected):
        lw.Laplace(likelihood).fit(mlp(3), (X, y))


@pytest.mark.parametrize("prior", [lw.Isotropic, lw.Layerwise, lw.DiagonalPrior])
@pytest.mark.parametrize("precision", [0.0, -1.0, float("inf"), float("nan")])
def test_prior_precisions_that_are_not_positive(prior: Any, precision: float) -> None:
    with refused(ConfigError, "positive finite prior precisions"):
        prior(precision)


def test_a_frozen_network() -> None:
    model = mlp(3).requires_grad_(False)
    with refused(ConfigError, "requires a gradient"):
        classify(model, (X, Y))
    assert lw.Laplace(lw.Categorical(), weights=lw.LastLayer()).fit(model, (X, Y)).network.size == 15


def test_a_network_without_parameters() -> None:
    with refused(ConfigError, "requires a gradient"):
        classify(nn.Tanh(), (X, Y))


def test_a_covariance_that_would_not_fit() -> None:
    model = nn.Linear(3000, 300, device="meta").to_empty(device="cpu").requires_grad_()
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    data = torch.zeros(4, 3000), torch.zeros(4, dtype=torch.long)
    recipe = lw.Laplace(lw.Categorical(), structure=lw.Full(view="weights"))
    with refused(TooLargeError, f"{(300 * 3001) ** 2 * 24:,} bytes"):
        recipe.fit(model, data)
    small = replace(recipe, structure=lw.Full(view="functions", max_bytes=10_000))
    with refused(TooLargeError, f"{1200**2 * 24:,} bytes"):
        small.fit(model, data)


@pytest.mark.parametrize("change", [F.dropout, lambda f: f + 0.1 * torch.randn_like(f)])
def test_a_network_that_is_random_in_eval_mode(change: Any) -> None:
    with refused(Unsupported, "the same outputs twice in eval mode"):
        classify(Wrapped(change), (X, Y))


def test_a_network_that_mixes_its_examples() -> None:
    model = nn.Sequential(mlp(3), nn.BatchNorm1d(3, track_running_stats=False).double())
    with refused(Unsupported, "one example each"):
        classify(model, (X, Y))


def test_no_output_tensor() -> None:
    with refused(ShapeError, "an object with logits"):
        classify(Wrapped(lambda f: {"scores": f}), (X, Y))
