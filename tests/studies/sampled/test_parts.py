from __future__ import annotations

import doctest
from functools import partial

import pytest
import torch
from torch import nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.networks import seeded, weight_count
from studies.sampled import evidence, fidelity, m_steps, networks
from studies.sampled.networks import KINDS, Kind, PointTransformer, cnn, features, points
from studies.sampled.setting import Images, exact, trained

SETTING = Setting(quick=True)
KIND = Kind(partial(cnn, (2, 2, 3)))


@pytest.fixture(scope="module")
def images() -> Images:
    return Images.drawn(KIND, 0, SETTING)


@pytest.fixture(scope="module")
def model(images: Images) -> nn.Module:
    return trained(KIND, images, 0, SETTING)


@pytest.mark.parametrize("module", [networks, m_steps, evidence])
def test_examples_of_the_docstrings(module: object) -> None:
    found = doctest.testmod(module)  # type: ignore[arg-type]
    assert found.attempted and not found.failed


def test_curves_of_the_exact_covariance_and_of_many_draws_are_the_same(model: nn.Module, images: Images) -> None:
    logs = torch.arange(0.0, 3.01, 0.25, dtype=torch.float64)
    found = {row["method"]: row for row in evidence.curves(model, images.train, logs, samples=400)}
    by_draws = torch.tensor(found["400 draws"]["evidence"])
    exactly = torch.tensor(found[evidence.EXACT]["evidence"])
    assert float((by_draws - exactly).abs().max()) < 0.02 * float(exactly.max() - exactly.min())
    assert found["400 draws"]["log_precision"] == pytest.approx(found[evidence.EXACT]["log_precision"], abs=0.05)
    assert found[evidence.EXACT]["ratio"] == 1.0


def test_the_exact_posterior_is_at_no_distance_from_itself(model: nn.Module, images: Images) -> None:
    posterior = exact(model, images.train)
    outputs, probs = fidelity.predicted(posterior, images.test[0])
    stronger = fidelity.predicted(posterior.with_prior_factor(3.0), images.test[0])
    own = fidelity.distances(outputs, probs, outputs, probs)
    other = fidelity.distances(*stronger, outputs, probs)
    assert own["divergence"] == 0 and own["wasserstein"] < 1e-5
    assert other["divergence"] > 1e-6 and other["wasserstein"] > 0.01


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_trained_and_its_norms_over_a_batch_are_no_features(name: str) -> None:
    kind = KINDS[name]
    images = Images.drawn(kind, 0, SETTING)
    model = trained(kind, images, 0, SETTING)
    assert model(images.test[0]).shape == (40, 10) and 400 < weight_count(model) < 1500
    recipe = lw.Laplace(lw.Categorical(), structure=lw.Diagonal(), weights=features(model))
    left_out = {"CNN": 36, "ResNet": 48, "Pre-ResNet": 40}.get(name, 0)
    assert recipe.fit(model, images.train).network.size == weight_count(model) - left_out


def test_the_transformer_does_not_see_the_order_of_its_points() -> None:
    model = seeded(PointTransformer, 0).double()
    x = points(torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))).double()
    torch.testing.assert_close(model(x), model(x[:, torch.randperm(x.shape[1])]))


def test_points_are_places_with_their_brightness() -> None:
    image = torch.zeros(1, 1, 8, 8)
    image[0, 0, 7, 0] = 1.0
    assert points(image)[0, 0].tolist() == [1.0, -1.0, 1.0]
