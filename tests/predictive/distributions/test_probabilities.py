"""What probabilities of classes and of labels have in common."""

from __future__ import annotations

import torch
from torch.nn.functional import binary_cross_entropy, cross_entropy

import lapwing as lw
from lapwing.moments.outputs import Moments
from tests.posterior_cases import normal


class TestCrossEntropy:
    def test_of_classes_is_that_of_torch_where_there_is_a_label(self) -> None:
        logits = normal(6, 3)
        others = normal(6, 3, seed=2).softmax(-1)
        targets = torch.tensor([0, -100, 2, 1, -100, 0])
        found = lw.Categorical().predictive(Moments.certain(logits)).cross_entropy(others, targets)
        expected = cross_entropy(logits, others, reduction="none")[targets >= 0]
        torch.testing.assert_close(found, expected)

    def test_of_labels_is_the_sum_over_them(self) -> None:
        logits = normal(6, 3)
        others = normal(6, 3, seed=2).sigmoid()
        found = lw.Bernoulli().predictive(Moments.certain(logits)).cross_entropy(others, torch.zeros(6, 3))
        expected = binary_cross_entropy(logits.sigmoid(), others, reduction="none").sum(-1)
        torch.testing.assert_close(found, expected)
