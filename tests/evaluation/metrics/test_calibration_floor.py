"""What the ECE is where there is no miscalibration, and how much of an ECE is chance."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from lapwing.evaluation import metrics


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
