from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lapwing.evaluation.metrics import accuracy, adaptive_ece, brier, ece, nll, rejection_curve
from lapwing.ground.errors import ConfigError, DataError, ShapeError
from tests.checker import unchecked
from tests.posterior_cases import refused


@pytest.fixture
def predictions(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    logits = 2 * torch.randn(500, 7, generator=generator, dtype=torch.float64)
    return logits.softmax(-1), torch.randint(0, 7, (500,), generator=generator)


def test_scores_equal_their_definitions_in_numpy(predictions: tuple[Tensor, Tensor]) -> None:
    p, y = (tensor.numpy() for tensor in predictions)
    onehot = np.eye(7)[y]
    assert accuracy(*predictions) == pytest.approx(np.mean(p.argmax(1) == y), abs=1e-15)
    assert nll(*predictions) == pytest.approx(-np.mean(np.log(p[np.arange(500), y])), rel=1e-14)
    assert brier(*predictions) == pytest.approx(np.mean(np.sum((p - onehot) ** 2, axis=1)), rel=1e-14)


def test_scores_equal_torchmetrics_and_scikit_learn(predictions: tuple[Tensor, Tensor]) -> None:
    classification = pytest.importorskip("torchmetrics.functional.classification")
    sklearn = pytest.importorskip("sklearn.metrics")
    probs, targets = predictions
    theirs = classification.multiclass_accuracy(probs, targets, 7, average="micro")
    assert accuracy(probs, targets) == pytest.approx(float(theirs), abs=1e-7)
    assert nll(probs, targets) == pytest.approx(sklearn.log_loss(targets, probs), rel=1e-12)
    two = torch.stack([1 - probs[:, 0], probs[:, 0]], -1)
    binary = (targets == 0).long()
    assert brier(two, binary) == pytest.approx(2 * sklearn.brier_score_loss(binary, probs[:, 0]), rel=1e-12)


@pytest.mark.parametrize("score", [accuracy, nll, brier, ece, adaptive_ece])
def test_ignored_labels_and_event_axes_do_not_count(score, predictions: tuple[Tensor, Tensor]) -> None:
    probs, targets = predictions
    tokens = targets.reshape(20, 25).clone()
    tokens[3, 4:] = -100
    kept = tokens.flatten() != -100
    assert score(probs.reshape(20, 25, 7), tokens) == score(probs[kept], targets[kept])
    assert score(probs[kept], targets[kept]) != score(probs, targets)


def test_a_perfect_prediction_scores_zero_and_the_opposite_two() -> None:
    probs = torch.eye(3, dtype=torch.float64)
    right, wrong = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
    assert (accuracy(probs, right), nll(probs, right), brier(probs, right)) == (1, 0, 0)
    assert (accuracy(probs, wrong), brier(probs, wrong)) == (0, 2)


@pytest.mark.parametrize(("dtype", "nats"), [(torch.float32, 126 * math.log(2)), (torch.float64, 1022 * math.log(2))])
def test_an_underflowed_probability_costs_what_its_dtype_can_say(dtype: torch.dtype, nats: float) -> None:
    probs = torch.tensor([[1.0, 0.0]], dtype=dtype)
    assert nll(probs, torch.tensor([1])) == pytest.approx(nats)


def test_probabilities_above_one_by_rounding_are_accepted() -> None:
    probs = torch.eye(2) * (1 + 2e-7)
    assert ece(probs, torch.tensor([0, 1])) == pytest.approx(2e-7, rel=0.5)


def test_half_precision_probabilities_are_accepted(predictions: tuple[Tensor, Tensor]) -> None:
    probs, targets = predictions
    assert brier(probs.to(torch.bfloat16), targets) == pytest.approx(brier(probs, targets), rel=1e-2)


PROBS = torch.full((4, 3), 1 / 3)
LABELS = torch.zeros(4, dtype=torch.long)


@pytest.mark.parametrize("score", [accuracy, nll, brier, ece, adaptive_ece, rejection_curve])
@pytest.mark.parametrize(
    ("probs", "targets", "error", "message"),
    [
        (torch.randn(4, 3) + 5, LABELS, DataError, r"sum to 1 over the last axis.*softmax"),
        (torch.tensor([[1.5, -0.5, 0.0]]).expand(4, 3), LABELS, DataError, r"probabilities >= 0.*-0\.5"),
        (PROBS * torch.nan, LABELS, DataError, r"finite probabilities.*12 NaN"),
        (PROBS, LABELS[:3], ShapeError, r"shape \[4\].*Got shape \[3\]"),
        (PROBS, LABELS[:, None], ShapeError, r"shape \[4\].*Got shape \[4, 1\]"),
        (torch.ones(4, 1), LABELS, ShapeError, r"c >= 2 classes.*\[4, 1\]"),
        (torch.ones(4), LABELS, ShapeError, r"\[n, c\].*Got shape \[4\]"),
        (PROBS, LABELS.double(), DataError, r"integer labels.*float64"),
        (PROBS, LABELS + 3, DataError, r"labels from 0 to 2.*4 of 4 outside, from 3 to 3"),
        (PROBS, LABELS - 1, DataError, r"labels from 0 to 2.*from -1 to -1"),
        (PROBS, LABELS - 100, DataError, r"other than -100.*4 labels, none to score"),
        (PROBS[:0], LABELS[:0], DataError, r"0 labels, none to score"),
    ],
)
def test_bad_input_costs_a_sentence(score, probs: Tensor, targets: Tensor, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        score(probs, targets)


def test_arrays_are_not_tensors() -> None:
    probs: Any = np.full((3, 2), 0.5)
    with unchecked(), refused(ConfigError, expected="probs", got="ndarray", hint="torch.as_tensor(probs)"):
        nll(probs, torch.zeros(3, dtype=torch.long))
