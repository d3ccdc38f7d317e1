from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from lapwing.evaluation.metrics import accuracy, auroc, rejection_curve
from lapwing.ground.errors import DataError


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
