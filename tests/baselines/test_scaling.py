"""Structured vector and matrix scaling: minima of their losses, and as ``probmetrics`` has them."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lapwing.baselines import MatrixScaling, PlainNetwork, Task, Temperature, VectorScaling
from lapwing.ground.errors import ConfigError, UnsupportedError
from lapwing.likelihoods import Categorical, Gaussian
from tests.posterior_cases import normal, refused

N, C = 60, 4
TRUTH = 2 * normal(N, C, seed=2)
LABELS = (TRUTH + normal(N, C, seed=3)).argmax(1)
LOGITS = 3 * TRUTH * torch.tensor([1.0, 0.5, 2.0, 1.0]) + torch.tensor([0.0, 2.0, 0.0, -1.0])
BOTH = pytest.mark.parametrize("recipe", [VectorScaling(), MatrixScaling()], ids=["vector", "matrix"])


def objective(recipe: VectorScaling | MatrixScaling, factor: Tensor, offset: Tensor, z: Tensor) -> Tensor:
    """The loss of the source, written with a matrix."""
    matrix = factor if factor.ndim == 2 else torch.diag(factor)
    changed = matrix - torch.eye(C).to(matrix)
    diagonal = changed.diagonal().square().sum()
    beside = changed.square().sum() - diagonal
    penalty = C / N * (diagonal + offset.square().sum()) + C * (C - 1) / N * beside
    return nn.functional.cross_entropy(z @ matrix.mT + offset, LABELS) + recipe.penalty * penalty


@BOTH
def test_it_is_the_minimum_of_the_penalised_loss(recipe: VectorScaling | MatrixScaling) -> None:
    found = recipe.scaling(LOGITS, LABELS)
    assert found.temperature == Temperature.fit(LOGITS, LABELS).temperature
    z = torch.log_softmax(LOGITS / found.temperature, -1)
    factor = found.factor.clone().requires_grad_()
    offset = found.offset.clone().requires_grad_()
    slopes = torch.autograd.grad(objective(recipe, factor, offset, z), (factor, offset))
    assert max(float(slope.abs().max()) for slope in slopes) < 1e-7


@BOTH
def test_it_is_that_of_probmetrics_from_the_same_temperature(recipe: VectorScaling | MatrixScaling) -> None:
    calibrators = pytest.importorskip("probmetrics.calibrators")
    logging.getLogger("probmetrics").setLevel(logging.ERROR)
    found = recipe.scaling(LOGITS, LABELS)
    z = torch.log_softmax(LOGITS / found.temperature, -1)
    if isinstance(recipe, VectorScaling):
        factor, offset = calibrators.SVSCalibrator()._fit_bfgs(z, LABELS, C, C / N, C / N)
    else:
        whole = calibrators.SMSCalibrator()._fit_bfgs(z, LABELS, C, C / N, C / N, C * (C - 1) / N)
        factor, offset = whole[:, :C], whole[:, C]
    np.testing.assert_allclose(found.factor.numpy(), factor, atol=2e-3)  # theirs stops a little before the minimum
    np.testing.assert_allclose(found.offset.numpy(), offset, atol=2e-3)
    theirs = objective(recipe, torch.as_tensor(factor), torch.as_tensor(offset), z)
    assert float(objective(recipe, found.factor, found.offset, z)) <= float(theirs)


@BOTH
def test_a_large_penalty_leaves_one_temperature(recipe: VectorScaling | MatrixScaling) -> None:
    network = PlainNetwork(nn.Identity())
    task = Task(nn.Identity(), (LOGITS, LABELS), (LOGITS, LABELS))
    fitted = type(recipe)(penalty=1e9).fit(task)
    expected = network.calibrated((LOGITS, LABELS)).predict(LOGITS).probs
    torch.testing.assert_close(fitted.predict(LOGITS).probs, expected, rtol=1e-6, atol=1e-9)


def test_held_out_data_of_that_kind_become_likelier_with_every_freedom() -> None:
    fitted = [
        PlainNetwork(nn.Identity()).calibrated((LOGITS, LABELS)),
        VectorScaling().fit(Task(nn.Identity(), (LOGITS, LABELS), (LOGITS, LABELS))),
        MatrixScaling(1e-6).fit(Task(nn.Identity(), (LOGITS, LABELS), (LOGITS, LABELS))),
    ]
    losses = [-float(each.predict(LOGITS).log_prob(LABELS).mean()) for each in fitted]
    assert losses == sorted(losses, reverse=True)
    assert losses[1] < losses[0] - 0.01


def test_pixels_and_ignored_labels_are_as_examples() -> None:
    model = nn.Conv2d(1, C, 1)
    likelihood = Categorical(event_dim=2, class_dim=1)
    x = torch.randn(5, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    y = model(x).argmax(1)
    y[0] = (y[0] + 1) % C
    y[1] = -100
    fitted = VectorScaling().fit(Task(model, (x, y), (x, y), likelihood=likelihood))
    assert fitted.predict(x).probs.shape == (5, 3, 4, C)
    assert fitted.predict(x).probs.dtype == torch.float32


def test_what_cannot_be_scaled_is_told() -> None:
    with refused(UnsupportedError, "the Categorical likelihood to scale logits"):
        VectorScaling().fit(Task(nn.Identity(), (LOGITS, LOGITS), (LOGITS, LOGITS), Gaussian()))
    with refused(ConfigError, "validation data for MatrixScaling"):
        MatrixScaling().fit(Task(nn.Identity(), (LOGITS, LABELS)))
    with refused(ConfigError, "a positive penalty"):
        VectorScaling(0.0)
