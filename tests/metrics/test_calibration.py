"""Calibration errors, and what they are by chance."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor

from lapwing import metrics
from lapwing.ground.errors import ConfigError
from lapwing.metrics import accuracy, adaptive_ece, ece, reliability


@pytest.fixture
def predictions(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    logits = 2 * torch.randn(997, 5, generator=generator, dtype=torch.float64)
    return logits.softmax(-1), torch.randint(0, 5, (997,), generator=generator)


def definition(probs: Tensor, targets: Tensor, bins: list[np.ndarray]) -> float:
    """Σ_b (n_b / n) |acc_b - conf_b| over bins given as masks or index arrays."""
    p, y = probs.numpy(), targets.numpy()
    confidence, correct = p.max(1), p.argmax(1) == y
    total = 0.0
    for b in bins:
        if len(confidence[b]):
            total += len(confidence[b]) / len(y) * abs(correct[b].mean() - confidence[b].mean())
    return total


def equal_width(probs: Tensor, bins: int) -> list[np.ndarray]:
    confidence = probs.numpy().max(1)
    return [(confidence > b / bins) & (confidence <= (b + 1) / bins) for b in range(bins)]


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_ece_equals_its_definition(bins: int, predictions: tuple[Tensor, Tensor]) -> None:
    expected = definition(*predictions, equal_width(predictions[0], bins))
    assert ece(*predictions, bins) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("bins", [1, 15, 400])
def test_adaptive_ece_equals_its_definition(bins: int, predictions: tuple[Tensor, Tensor]) -> None:
    order = np.argsort(predictions[0].numpy().max(1))
    expected = definition(*predictions, np.array_split(order, bins))
    assert adaptive_ece(*predictions, bins) == pytest.approx(expected, rel=1e-13)


def test_ece_equals_torchmetrics_where_no_confidence_is_one(predictions: tuple[Tensor, Tensor]) -> None:
    classification = pytest.importorskip("torchmetrics.functional.classification")
    theirs = classification.multiclass_calibration_error(*predictions, 5, n_bins=15)
    assert ece(*predictions) == pytest.approx(float(theirs), abs=1e-6)


def test_confidences_of_exactly_one_share_the_last_bin() -> None:
    probs = torch.tensor([[1.0, 0.0], [0.95, 0.05]], dtype=torch.float64)
    targets = torch.tensor([1, 0])
    assert ece(probs, targets) == pytest.approx(abs(0.5 - 0.975))
    assert reliability(probs, targets).count[-1] == 2


def test_a_confidence_on_an_edge_belongs_to_the_bin_below() -> None:
    probs = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    assert reliability(probs, torch.tensor([0]), bins=4).count.tolist() == [0, 1, 0, 0]


def test_reliability_holds_the_numbers_of_the_diagram(predictions: tuple[Tensor, Tensor]) -> None:
    r = reliability(*predictions)
    p, y = (tensor.numpy() for tensor in predictions)
    assert torch.equal(r.edges, torch.linspace(0, 1, 16, dtype=torch.float64))
    for b, mask in enumerate(equal_width(predictions[0], 15)):
        assert r.count[b] == mask.sum()
        if mask.any():
            assert float(r.confidence[b]) == pytest.approx(p[mask].max(1).mean(), rel=1e-13)
            assert float(r.accuracy[b]) == pytest.approx((p[mask].argmax(1) == y[mask]).mean(), rel=1e-13)
        else:
            assert (float(r.confidence[b]), float(r.accuracy[b])) == (0, 0)
    assert r.error == ece(*predictions)
    assert float((r.accuracy * r.count).sum() / r.count.sum()) == pytest.approx(accuracy(*predictions))


@pytest.mark.parametrize("score", [ece, adaptive_ece])
def test_the_order_of_the_data_does_not_matter(score, generator: torch.Generator) -> None:
    top = torch.tensor([0.6, 0.8])[torch.randint(0, 2, (100,), generator=generator)].double()
    probs, targets = torch.stack([top, 1 - top], -1), torch.randint(0, 2, (100,), generator=generator)
    shuffled = torch.randperm(100, generator=generator)
    assert score(probs, targets) == pytest.approx(score(probs[shuffled], targets[shuffled]), rel=1e-12)
    by_label = targets.argsort()
    assert score(probs, targets) == pytest.approx(score(probs[by_label], targets[by_label]), rel=1e-12)


def test_labels_drawn_from_the_probabilities_are_calibrated(generator: torch.Generator) -> None:
    probs = (2 * torch.randn(40_000, 3, generator=generator, dtype=torch.float64)).softmax(-1)
    targets = torch.multinomial(probs, 1, generator=generator)[:, 0]
    assert ece(probs, targets) < 0.01
    assert adaptive_ece(probs, targets) < 0.01
    sharpened = (2 * probs.log()).softmax(-1)
    assert ece(sharpened, targets) > 0.05


@pytest.mark.parametrize("score", [ece, adaptive_ece, reliability])
def test_no_bins_costs_a_sentence(score, predictions: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ConfigError, match="bins of at least 1"):
        score(*predictions, bins=0)


def calibrated(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities of three classes, and labels drawn from them."""
    probs = torch.softmax(3 * torch.randn(n, 3, generator=generator, dtype=torch.float64), -1)
    return probs, torch.multinomial(probs, 1, generator=generator)[:, 0]


def test_the_floor_is_the_mean_ece_over_all_labels_weighed_by_their_probability() -> None:
    confidence = torch.tensor([0.55, 0.58, 0.63, 0.9, 0.99], dtype=torch.float64)
    probs = torch.stack([confidence, 1 - confidence], -1)
    expected = 0.0
    for labels in product((0, 1), repeat=5):
        targets = torch.tensor(labels)
        expected += float(probs.gather(1, targets[:, None]).prod()) * metrics.ece(probs, targets)
    assert metrics.ece_floor(probs, torch.zeros(5, dtype=torch.long)) == pytest.approx(expected, rel=0.1)
    before = torch.get_rng_state()
    with_ignored = torch.cat([probs, probs[:1]]), torch.tensor([0, 0, 0, 0, 0, -100])
    assert metrics.ece_floor(*with_ignored) == metrics.ece_floor(probs, torch.ones(5, dtype=torch.long))
    assert torch.equal(torch.get_rng_state(), before)


def test_chance_is_that_of_the_examples_of_a_bin_less_one() -> None:
    probs = torch.tensor([[0.9, 0.1]]).expand(10, 2)
    found = metrics.debiased_ece(probs, torch.tensor([0] * 7 + [1] * 3))
    assert found == pytest.approx((0.2**2 - 0.7 * 0.3 / 9) ** 0.5, rel=1e-5)


def test_a_calibrated_predictor_has_the_floor_and_nearly_no_debiased_ece(generator: torch.Generator) -> None:
    plain, debiased, floors = [], [], []
    for _ in range(60):
        probs, targets = calibrated(400, generator)
        plain.append(metrics.ece(probs, targets))
        found = metrics.debiased_ece(probs, targets)
        debiased.append(found * abs(found))
        floors.append(metrics.ece_floor(probs, targets))
    means = [sum(values) / 60 for values in (plain, floors, debiased)]
    assert means[0] == pytest.approx(means[1], rel=0.1)
    assert abs(means[2]) < 0.3 * means[0] ** 2  # its square is unbiased


def test_a_large_miscalibration_keeps_its_size(generator: torch.Generator) -> None:
    probs, targets = calibrated(5000, generator)
    sharp = torch.softmax(3 * probs.log(), -1)
    found = metrics.reliability(sharp, targets)
    plain = ((found.accuracy - found.confidence).square() * found.count).sum() / found.count.sum()
    assert metrics.debiased_ece(sharp, targets) == pytest.approx(float(plain) ** 0.5, rel=0.03)
    sole = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).double()
    assert metrics.debiased_ece(sole, torch.tensor([0, 0]), bins=20) == 0.0  # bins of one example
    assert metrics.ece(sharp, targets) > 5 * metrics.ece_floor(sharp, targets)


@pytest.mark.parametrize("bins", [1, 7, 10])
def test_bins_of_equally_many_have_the_binomial_intervals_of_scipy(
    predictions: tuple[Tensor, Tensor], bins: int
) -> None:
    confidence, labels = predictions[0].max(1)
    correct = labels == predictions[1]
    found = metrics.equal_mass(confidence, correct, bins)
    assert int(found.count.sum()) == 997 and int(found.count.max() - found.count.min()) <= 1
    gaps = (found.accuracy - found.confidence).abs() * found.count
    assert float(gaps.sum()) / 997 == pytest.approx(adaptive_ece(*predictions, bins=bins), abs=1e-12)
    for accuracy_of, low, high, n in zip(found.accuracy, found.low, found.high, found.count, strict=True):
        right = round(float(accuracy_of * n))
        interval = binomtest(right, int(n)).proportion_ci(0.95, method="wilson")
        assert (float(low), float(high)) == pytest.approx((interval.low, interval.high), abs=1e-4)


def test_intervals_of_bins_end_at_none_and_all() -> None:
    found = metrics.equal_mass(torch.tensor([0.5, 0.6, 0.9, 0.95]), torch.tensor([0, 0, 1, 1]), bins=2)
    assert found.low.tolist()[0] == 0 and found.high.tolist()[1] == 1
    assert len(metrics.equal_mass(torch.tensor([0.5, 0.6]), torch.tensor([0, 1]), bins=9).count) == 2
    with pytest.raises(ConfigError, match="bins"):
        metrics.equal_mass(torch.tensor([0.5]), torch.tensor([1]), bins=0)
