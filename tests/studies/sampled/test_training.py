from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.training import Schedule
from studies.sampled import training
from studies.sampled.networks import Kind, cnn
from studies.sampled.setting import Images, exact

WIDTHS = (2, 2, 3)
KIND = Kind(partial(cnn, WIDTHS))


@pytest.fixture(scope="module")
def images() -> Images:
    return Images.drawn(KIND, 0, Setting(quick=True))


def path(images: Images, epochs: int, schedule: Schedule) -> Tensor:
    """The first weights at each step."""
    seen: list[Tensor] = []

    def watched() -> nn.Module:
        model: Any = cnn(WIDTHS)
        first = model[0]
        model.register_forward_pre_hook(lambda *_: seen.append(first.weight.detach().clone()))
        return model

    Kind(watched).trained(images.train, 0, epochs, schedule)
    return torch.stack(seen)


def test_at_a_rate_that_stays_more_epochs_are_more_steps_of_the_same_path(images: Images) -> None:
    assert len(path(images, 3, "constant")) == 3
    assert torch.equal(path(images, 5, "constant")[:3], path(images, 3, "constant"))
    assert not torch.equal(path(images, 5, "cosine")[:3], path(images, 3, "cosine"))


def test_the_distance_is_that_of_the_posteriors_of_both_precisions(images: Images) -> None:
    model = KIND.trained(images.train, 0, 30, "constant")
    row = training.compared(model, images)
    posterior = exact(model, images.train)
    at_weights = lw.tune(posterior, lw.EvidenceGradient())
    assert row["at_weights"] == pytest.approx(float(at_weights.prior_precisions), rel=1e-6)
    assert row["square_norm"] == pytest.approx(float(posterior.network.weights.square().sum()), rel=1e-12)
    covariances = []
    for a in (row["at_weights"], row["at_mode"]):
        predicted: Any = posterior.with_hyperparameters(lw.Isotropic(a), posterior.likelihood).predict(images.test[0])
        covariances.append(predicted.logits.covariance)
    one, other = covariances
    roots = torch.linalg.eigvals(one @ other).real.clamp_min(0).sqrt()
    squares = (one + other).diagonal(dim1=-2, dim2=-1).sum(-1) - 2 * roots.sum(-1)
    assert row["wasserstein"] == pytest.approx(float(squares.sqrt().mean()), rel=1e-5)
    assert row["wasserstein"] > 0.01


def test_the_figure_names_the_networks() -> None:
    pytest.importorskip("matplotlib")
    means = [
        {"part": part, "epochs": epochs, "wasserstein": 0.1 * epochs, "wasserstein_stderr": 0.01, "summary": True}
        for part in training.COMPARED
        for epochs in training.HURRIED
    ]
    labels = [text.get_text() for text in training.draw(means).axes[0].get_legend().get_texts()]
    assert labels == ["ResNet, normalised", "FixUp, not normalised"]
