"""Classification and MultiLabel: what is read off probabilities."""

from __future__ import annotations

import math

import torch

from lapwing.predictive import Classification, Draws, JointMoments, Moments, MultiLabel

PROBS = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]], dtype=torch.float64)
LOGITS = Moments.certain(torch.zeros(2, 3, dtype=torch.float64))


def test_labels_confidence_and_entropy() -> None:
    p = Classification(LOGITS, PROBS)
    assert p.labels.tolist() == [0, 1]
    assert p.confidence.tolist() == [0.5, 1.0]
    torch.testing.assert_close(p.entropy, torch.tensor([1.5 * math.log(2), 0.0], dtype=torch.float64))


def test_covariance_is_that_of_the_one_hot_label() -> None:
    covariance = Classification(LOGITS, PROBS).covariance
    onehot = torch.eye(3, dtype=torch.float64)
    expected = torch.einsum("k,ki,kj->ij", PROBS[0], onehot - PROBS[0], onehot - PROBS[0])
    torch.testing.assert_close(covariance[0], expected)
    assert float(covariance[1].abs().sum()) == 0.0


def test_samples_are_softmax_of_drawn_logits() -> None:
    logits = Moments(torch.zeros(2, 3), torch.eye(3).expand(2, 3, 3))
    p = Classification(logits, PROBS.float())
    drawn = p.sample(5, generator=torch.Generator().manual_seed(2))
    expected = torch.softmax(logits.sample(5, generator=torch.Generator().manual_seed(2)), -1)
    assert torch.equal(drawn, expected)


def test_samples_of_joint_logits_are_coherent_over_the_batch() -> None:
    root = torch.tensor([1.0, 0.0, 1.0, 0.0])
    joint = JointMoments(torch.zeros(2, 2), torch.outer(root, root).reshape(2, 2, 2, 2))
    drawn = Classification(joint, torch.full((2, 2), 0.5)).sample(8)
    torch.testing.assert_close(drawn[:, 0], drawn[:, 1])
    values = torch.randn(4, 2, 2)
    taken = Classification(Draws(values), torch.full((2, 2), 0.5)).sample(4)
    torch.testing.assert_close(taken.sum(0), torch.softmax(values, -1).sum(0))


def test_multilabel_reads_each_label_by_itself() -> None:
    probs = torch.tensor([[0.1, 0.9, 1.0]], dtype=torch.float64)
    p = MultiLabel(Moments.certain(torch.zeros(1, 3, dtype=torch.float64)), probs)
    assert p.labels.tolist() == [[0, 1, 1]]
    torch.testing.assert_close(p.confidence, torch.tensor([[0.9, 0.9, 1.0]], dtype=torch.float64))
    torch.testing.assert_close(p.variance, probs * (1 - probs))
    nats = -0.1 * math.log(0.1) - 0.9 * math.log(0.9)
    torch.testing.assert_close(p.entropy, torch.tensor([[nats, nats, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(p.sample(2), torch.full((2, 1, 3), 0.5, dtype=torch.float64))
