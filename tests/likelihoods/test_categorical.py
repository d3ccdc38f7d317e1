"""Categorical: ignored labels, extreme logits, labels that cannot be."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lapwing.ground.errors import DataError, DataWarning, ShapeError
from lapwing.likelihoods import Categorical

LIKELIHOOD = Categorical()


def logits(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_nll_is_torchs_cross_entropy() -> None:
    targets = torch.tensor([0, 3, -100, 1])
    expected = cross_entropy(logits(4, 5), targets, reduction="none")
    torch.testing.assert_close(LIKELIHOOD.nll(logits(4, 5), targets), expected)


def test_pixels_match_torchs_channel_first_cross_entropy() -> None:
    raw, targets = logits(2, 3, 4, 4), torch.randint(0, 3, (2, 4, 4))
    likelihood = Categorical(event_dim=2, class_dim=1)
    expected = cross_entropy(raw, targets, reduction="none")
    torch.testing.assert_close(likelihood.nll(likelihood.canonical(raw), targets), expected)


def test_ignored_labels_contribute_nothing_at_all() -> None:
    outputs, targets = logits(3, 4), torch.tensor([1, -100, 2])
    assert float(LIKELIHOOD.nll(outputs, targets)[1]) == 0.0
    for value in (
        LIKELIHOOD.score(outputs, targets),
        LIKELIHOOD.hessian(outputs, targets),
        LIKELIHOOD.root(outputs, targets),
    ):
        assert float(value[1].abs().sum()) == 0.0
        assert float(value[[0, 2]].abs().amin()) > 0.0
    assert LIKELIHOOD.count(targets) == 2
    LIKELIHOOD.check(outputs, targets)


def test_ignored_positions_send_no_gradient() -> None:
    outputs = logits(2, 3).requires_grad_()
    LIKELIHOOD.nll(outputs, torch.tensor([-100, 1])).sum().backward()
    assert outputs.grad is not None
    assert float(outputs.grad[0].abs().sum()) == 0.0
    torch.testing.assert_close(-outputs.grad, LIKELIHOOD.score(outputs.detach(), torch.tensor([-100, 1])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_and_exact_for_extreme_logits(dtype: torch.dtype) -> None:
    outputs = torch.tensor(
        [[1e4, 0.0, -1e4], [1e4, 1e4, -1e4], [-1e4, -1e4, -1e4], [1e4, 1e4 - 20.0, 1e4 - 40.0]], dtype=dtype
    )
    targets = torch.tensor([2, 0, 1, 0])
    curvature, root = LIKELIHOOD.hessian(outputs), LIKELIHOOD.root(outputs)
    for value in (LIKELIHOOD.nll(outputs, targets), LIKELIHOOD.score(outputs, targets), curvature, root):
        assert bool(torch.isfinite(value).all())
    torch.testing.assert_close(root @ root.mT, curvature)
    torch.testing.assert_close(curvature[1, :2, :2], torch.tensor([[0.25, -0.25], [-0.25, 0.25]], dtype=dtype))
    assert float(LIKELIHOOD.nll(outputs, targets)[0]) == 2e4


def test_curvature_of_a_confident_network_keeps_its_digits_in_single_precision() -> None:
    outputs = torch.tensor([[30.0, 0.0, -1.0]])
    double = outputs.double()
    exact = LIKELIHOOD.hessian(double)
    assert 0 < float(exact[0, 0, 0]) < 1e-12
    for value in (LIKELIHOOD.hessian(outputs), LIKELIHOOD.root(outputs) @ LIKELIHOOD.root(outputs).mT):
        torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=0.0)
    label = torch.tensor([0])
    score = LIKELIHOOD.score(outputs, label).double()
    torch.testing.assert_close(score, LIKELIHOOD.score(double, label), rtol=1e-5, atol=0.0)


def test_rows_of_the_curvature_sum_to_zero() -> None:
    curvature = LIKELIHOOD.hessian(5 * logits(6, 7))
    torch.testing.assert_close(curvature.sum(-1), torch.zeros(6, 7, dtype=torch.float64))


def test_impossible_classes_are_never_drawn() -> None:
    outputs = torch.tensor([0.0, -1e4, 0.0, -1e4]).expand(20000, 4)
    drawn = LIKELIHOOD.draw(outputs, generator=torch.Generator().manual_seed(0))
    assert set(drawn.tolist()) == {0, 2}
    assert abs(float((drawn == 0).double().mean()) - 0.5) < 5 * 0.5 / 20000**0.5


def test_one_class_is_certain() -> None:
    outputs, targets = torch.randn(3, 1), torch.zeros(3, dtype=torch.long)
    assert LIKELIHOOD.nll(outputs, targets).tolist() == [0.0] * 3
    assert LIKELIHOOD.hessian(outputs).tolist() == [[[0.0]]] * 3
    assert LIKELIHOOD.draw(outputs).tolist() == [0, 0, 0]


def test_a_class_missing_from_the_data_is_fine() -> None:
    outputs, targets = logits(3, 10), torch.tensor([0, 0, 9])
    LIKELIHOOD.check(outputs, targets)
    assert bool(LIKELIHOOD.nll(outputs, targets).isfinite().all())


def test_labels_outside_the_classes_are_refused() -> None:
    with pytest.raises(DataError, match=r"labels from 0 to 2.*Got 2 labels outside, from -1 to 3.*renumbering"):
        LIKELIHOOD.check(logits(3, 3), torch.tensor([3, 0, -1]))


def test_probabilities_in_place_of_logits_are_told_of() -> None:
    with pytest.warns(DataWarning, match="look like probabilities"):
        LIKELIHOOD.check(logits(3, 3).softmax(-1), torch.tensor([0, 1, 2]))


def test_targets_of_another_likelihood_are_refused() -> None:
    with pytest.raises(
        DataError,
        match=r"integer class labels for Categorical\. Got targets of type torch.float32\. Try targets\.long\(\)",
    ):
        LIKELIHOOD.canonical_targets(logits(3, 3), torch.zeros(3))
    with pytest.raises(DataError, match="one-hot"):
        LIKELIHOOD.canonical_targets(logits(3, 3), torch.eye(3))
    with pytest.raises(ShapeError, match=r"targets\.argmax\(-1\) for one-hot labels"):
        LIKELIHOOD.canonical_targets(logits(3, 3), torch.eye(3, dtype=torch.long))
    with pytest.raises(ShapeError, match=r"shape \[3\]\. Got shape \[3, 1\]\. Try targets.squeeze\(-1\)"):
        LIKELIHOOD.canonical_targets(logits(3, 3), torch.zeros(3, 1, dtype=torch.long))
    with pytest.raises(ShapeError, match=r"targets of shape \[2, 5\]\. Got shape \[2\]"):
        Categorical(event_dim=1).canonical_targets(logits(2, 5, 3), torch.zeros(2, dtype=torch.long))


def test_a_single_output_is_for_bernoulli() -> None:
    with pytest.raises(DataError, match=r"labels from 0 to 0.*Got 1 labels outside, from 1 to 1.*Try Bernoulli\(\)"):
        LIKELIHOOD.check(logits(3, 1), torch.tensor([1, 0, 0]))


def test_only_outputs_that_are_probabilities_in_every_row_are_warned_of() -> None:
    probabilities, labels = torch.tensor([[0.25, 0.75], [0.5, 0.5]]), torch.tensor([0, 1])
    with pytest.warns(DataWarning, match="look like probabilities"):
        LIKELIHOOD.check(probabilities, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LIKELIHOOD.check(torch.cat([probabilities, logits(1, 2)]), torch.tensor([0, 1, 0]))
        LIKELIHOOD.check(torch.ones(3, 1), torch.zeros(3, dtype=torch.long))  # a single class is always certain
