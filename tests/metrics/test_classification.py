"""Scores of class probabilities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from lapwing.ground.errors import ConfigError, DataError, LapwingError, ShapeError
from lapwing.metrics import (
    RejectionCurve,
    accuracy,
    adaptive_ece,
    aupr,
    auroc,
    auroc_placements,
    brier,
    ece,
    fpr95,
    losses,
    nll,
    rejection_curve,
    symmetric_kl,
)
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
        (PROBS, LABELS.double(), DataError, r"integer class labels.*float64"),
        (PROBS, LABELS + 3, DataError, r"labels from 0 to 2.*4 labels outside, from 3 to 3"),
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
    with unchecked(), refused(ConfigError, "torch.as_tensor(probs)"):
        nll(probs, torch.zeros(3, dtype=torch.long))


def scores(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    inside = torch.randn(300, generator=generator, dtype=torch.float64)
    return inside, 1 + 2 * torch.randn(200, generator=generator, dtype=torch.float64)


def test_auroc_is_the_probability_that_a_pair_is_ordered(generator: torch.Generator) -> None:
    inside, outside = (s.mul(4).round() for s in scores(generator))
    low, high = inside.numpy()[:, None], outside.numpy()[None, :]
    expected = np.mean((high > low) + 0.5 * (high == low))
    assert (high == low).any()
    assert auroc(inside, outside) == pytest.approx(expected, rel=1e-14)


def test_auroc_equals_scikit_learn_and_torchmetrics(generator: torch.Generator) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    classification = pytest.importorskip("torchmetrics.functional.classification")
    inside, outside = scores(generator)
    both, labels = torch.cat([inside, outside]), torch.cat([torch.zeros(300), torch.ones(200)]).long()
    assert auroc(inside, outside) == pytest.approx(sklearn.roc_auc_score(labels, both), rel=1e-12)
    theirs = classification.binary_auroc(torch.sigmoid(both), labels)
    assert auroc(inside, outside) == pytest.approx(float(theirs), abs=1e-6)


def test_auroc_is_unchanged_by_an_increasing_function(generator: torch.Generator) -> None:
    inside, outside = scores(generator)
    assert auroc(100 * inside - 7, 100 * outside - 7) == auroc(inside, outside)
    assert auroc(-inside, -outside) == pytest.approx(1 - auroc(inside, outside), rel=1e-12)


def test_auroc_at_its_limits() -> None:
    zero, one = torch.zeros(3), torch.ones(2)
    assert (auroc(zero, one), auroc(one, zero), auroc(one, one)) == (1, 0, 0.5)
    assert auroc(zero, one * torch.inf) == 1


@pytest.mark.parametrize(
    ("inside", "outside", "message"),
    [
        (torch.zeros(0), torch.zeros(2), "in_scores of at least one example.*Got none"),
        (torch.zeros(2), torch.tensor([0.0, torch.nan]), "out_scores of at least one example.*Got 1 NaN"),
    ],
)
def test_bad_scores_cost_a_sentence(inside: Tensor, outside: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        auroc(inside, outside)


def test_rejection_curve_equals_its_definition(generator: torch.Generator) -> None:
    logits = 2 * torch.randn(60, 4, generator=generator, dtype=torch.float64)
    probs, targets = logits.softmax(-1), torch.randint(0, 4, (60,), generator=generator)
    p, y = probs.numpy(), targets.numpy()
    order = np.argsort(p.max(1))
    curve = rejection_curve(probs, targets)
    for k in range(60):
        kept = order[k:]
        assert float(curve.fraction[k]) == pytest.approx(k / 60, rel=1e-14)
        assert float(curve.accuracy[k]) == pytest.approx((p[kept].argmax(1) == y[kept]).mean(), rel=1e-13)
    assert float(curve.accuracy[0]) == pytest.approx(accuracy(probs, targets), rel=1e-14)
    assert curve.area == pytest.approx(np.mean(curve.accuracy.numpy()), rel=1e-14)


def test_confidence_that_knows_its_mistakes_has_the_largest_area() -> None:
    top = torch.tensor([0.9, 0.8, 0.7, 0.6], dtype=torch.float64)
    probs = torch.stack([top, 1 - top], -1)
    knows, reversed_ = torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 0, 0])
    assert rejection_curve(probs, knows).accuracy.tolist() == pytest.approx([1 / 2, 2 / 3, 1, 1])
    assert rejection_curve(probs, knows).area > 0.5 > rejection_curve(probs, reversed_).area


def test_ties_share_their_accuracy_in_any_order() -> None:
    probs = torch.tensor([[0.75, 0.25]], dtype=torch.float64).expand(4, 2)
    for targets in ([0, 0, 0, 1], [1, 0, 0, 0]):
        assert rejection_curve(probs, torch.tensor(targets)).accuracy.tolist() == pytest.approx([0.75] * 4)


def test_it_is_the_mean_of_both_divergences(generator: torch.Generator) -> None:
    p, q = torch.randn(2, 6, 2, 4, generator=generator, dtype=torch.float64).softmax(-1)
    found = symmetric_kl(p, q)
    expected = 0.5 * (stats.entropy(p.numpy(), q.numpy(), axis=-1) + stats.entropy(q.numpy(), p.numpy(), axis=-1))
    assert found.shape == (6, 2)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    assert symmetric_kl(p, p).abs().max() == 0
    torch.testing.assert_close(symmetric_kl(q, p), found)


def test_probabilities_that_underflowed_count_as_the_smallest_number() -> None:
    one, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]])
    tiny = torch.finfo(torch.float32).tiny
    expected = 0.25 * (np.log(2) + np.log(0.5 / tiny))
    assert float(symmetric_kl(one, other)) == pytest.approx(expected, rel=1e-6)
    assert float(symmetric_kl(one, one)) == 0


HALF = torch.full((3, 2), 0.5)


@pytest.mark.parametrize(
    ("probs", "reference", "error", "message"),
    [
        (HALF, HALF[:2], ShapeError, r"the reference, \[2, 2\]. Got \[3, 2\]"),
        (torch.tensor(1.0), torch.tensor(1.0), ShapeError, r"class probabilities \[\*n, c\].*Got \[\]"),
        (HALF.numpy(), HALF, ConfigError, r"probs to be .*Got .*ndarray.*torch.as_tensor\(probs\)"),
        (HALF, HALF.numpy(), ConfigError, r"reference to be .*Got .*ndarray.*torch.as_tensor\(reference\)"),
        (HALF[:0], HALF[:0], DataError, "at least one element"),
        (2 * HALF, HALF, DataError, "sum to 1"),
        (HALF, HALF * torch.nan, DataError, "finite probabilities"),
        (HALF, torch.tensor([[1.5, -0.5]]).expand(3, 2), DataError, "probabilities >= 0"),
    ],
)
def test_bad_input_of_divergences_costs_a_sentence(
    probs: Any, reference: Any, error: type[LapwingError], message: str
) -> None:
    with unchecked(), pytest.raises(error, match=message):
        symmetric_kl(probs, reference)


def test_foreign_scores_equal_scikit_learn(generator: torch.Generator) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    familiar = torch.randn(211, generator=generator).mul(4).round()  # many ties
    foreign = torch.randn(97, generator=generator).mul(4).round() + 3
    labels = np.r_[np.zeros(211), np.ones(97)]
    scores = torch.cat([familiar, foreign]).numpy()
    assert auroc(familiar, foreign) == pytest.approx(sklearn.roc_auc_score(labels, scores), rel=1e-12)
    assert aupr(familiar, foreign) == pytest.approx(sklearn.average_precision_score(labels, scores), rel=1e-12)
    false, true, _ = sklearn.roc_curve(labels, scores, drop_intermediate=False)
    assert fpr95(familiar, foreign) == pytest.approx(false[true >= 0.95].min(), rel=1e-12)
    for score in (aupr, fpr95):
        with refused(DataError, "out_scores of at least one example"):
            score(familiar, foreign[:0])


def test_risk_of_what_is_kept_is_that_of_a_naive_loop(predictions: tuple[Tensor, Tensor]) -> None:
    curve = rejection_curve(*predictions)
    order = predictions[0].amax(1).argsort(descending=True)
    wrong = (predictions[0].argmax(1) != predictions[1])[order].double()
    risks = [float(wrong[:kept].mean()) for kept in range(1, 501)]
    assert curve.aurc == pytest.approx(np.mean(risks), rel=1e-12)
    assert curve.augrc == pytest.approx(np.mean([float(wrong[:kept].sum()) / 500 for kept in range(1, 501)]), rel=1e-12)
    for risk in (0.05, 0.86):
        allowed = [kept / 500 for kept, found in enumerate(risks, 1) if found <= risk]
        assert curve.coverage_at(risk) == pytest.approx(max(allowed, default=0.0), rel=1e-12)
    assert rejection_curve(torch.eye(3), torch.tensor([1, 2, 0])).coverage_at(0.5) == 0.0


def test_losses_are_those_of_single_labels(predictions: tuple[Tensor, Tensor]) -> None:
    probs, targets = predictions
    ignoring = targets.clone()
    ignoring[::3] = -100
    found = losses(probs, ignoring)
    kept = ignoring != -100
    torch.testing.assert_close(found, -probs[kept].gather(1, targets[kept][:, None]).squeeze(1).log())
    assert float(found.mean()) == nll(probs, ignoring)


def test_placements_are_shares_of_the_other_side_with_ties_counted_half(generator: torch.Generator) -> None:
    familiar = torch.randint(0, 6, (40,), generator=generator).double()
    foreign = torch.randint(2, 9, (30,), generator=generator).double()
    above, below = auroc_placements(familiar, foreign)
    gaps = foreign[:, None] - familiar
    wins = (gaps > 0).double() + 0.5 * (gaps == 0).double()
    torch.testing.assert_close(above, wins.mean(0))
    torch.testing.assert_close(below, wins.mean(1))
    assert float(above.mean()) == pytest.approx(auroc(familiar, foreign))


def test_a_rejection_curve_of_confidences_is_that_of_the_probabilities(predictions: tuple[Tensor, Tensor]) -> None:
    confidence, labels = predictions[0].max(1)
    ours = RejectionCurve.of(confidence, (labels == predictions[1]).double())
    theirs = rejection_curve(*predictions)
    assert torch.equal(ours.fraction, theirs.fraction) and torch.equal(ours.accuracy, theirs.accuracy)
