"""Weights before a normalisation have no scale: predictions must not depend on the one they happen to have."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.jacobian.network.scale_invariance import normalised
from lapwing.priors import GPrior, Prior
from tests.posterior_cases import labels, normal, seeded

IMAGES, ROWS = normal(40, 2, 4, 4), normal(40, 3)
EPS = 1e-14
"""With a usual eps, 1e-5, a scale has some effect."""


def layer_normed() -> nn.Module:
    layers = (nn.Linear(3, 5), nn.LayerNorm(5, EPS), nn.Tanh(), nn.Linear(5, 4), nn.LayerNorm(4, EPS), nn.Tanh())
    return nn.Sequential(*layers, nn.Linear(4, 3))


def group_normed() -> nn.Module:
    layers = (nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4, EPS), nn.Tanh(), nn.AvgPool2d(3), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(4, 3))


CASES = {"layer norm": (layer_normed, ROWS), "group norm": (group_normed, IMAGES)}


def rescaled(model: nn.Module, parts: tuple[tuple[str, ...], ...], c: float) -> nn.Module:
    """The same function, its first normalised weights multiplied by c, any others by 1 / c."""
    changed = copy.deepcopy(model)
    params = dict(changed.named_parameters())
    for number, part in enumerate(parts):
        for name in part:
            params[name].data *= c if number == 0 else 1 / c
    return changed


def fitted(model: nn.Module, x: Tensor, prior: Prior, tuned: bool) -> tuple[lw.Posterior, Tensor]:
    """A posterior, and the variances of its outputs at new inputs."""
    recipe = lw.Laplace(lw.Categorical(), prior=prior, structure=lw.Full(view="weights"))
    posterior = recipe.fit(model, (x[:30], labels(30, classes=3)))
    if tuned:
        posterior = lw.tune(posterior, lw.EvidenceGradient(steps=1000))
        posterior = lw.tune(posterior, lw.MacKay(tolerance=1e-12, steps=2000))
    return posterior, posterior.predict(x[30:]).logits.covariance  # type: ignore[attr-defined]


@pytest.mark.parametrize("c", [0.2, 5.0])
@pytest.mark.parametrize("name", CASES)
def test_layerwise_at_its_best_does_not_see_the_scale(name: str, c: float) -> None:
    build, x = CASES[name]
    model = seeded(build)
    prior = normalised(model, x)
    assert prior.parts is not None
    one, variance = fitted(model, x, prior, tuned=True)
    other, same = fitted(rescaled(model, prior.parts, c), x, prior, tuned=True)
    torch.testing.assert_close(same, variance, rtol=1e-6, atol=1e-9)
    expected = [*[c**-2, c**2][: len(prior.parts)], 1.0]
    ratio = other.prior_precisions / one.prior_precisions
    torch.testing.assert_close(ratio, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=0)


@pytest.mark.parametrize("a", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("name", CASES)
def test_the_g_prior_does_not_see_the_scale_whatever_its_precision(name: str, a: float) -> None:
    build, x = CASES[name]
    model = seeded(build)
    parts = normalised(model, x).parts or ()
    _, variance = fitted(model, x, GPrior(a), tuned=False)
    for c in (0.2, 5.0):
        _, same = fitted(rescaled(model, parts, c), x, GPrior(a), tuned=False)
        torch.testing.assert_close(same, variance, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_the_g_prior_at_its_best_does_not_see_the_scale(name: str) -> None:
    build, x = CASES[name]
    model = seeded(build)
    one, variance = fitted(model, x, GPrior(), tuned=True)
    other, same = fitted(rescaled(model, normalised(model, x).parts or (), 5.0), x, GPrior(), tuned=True)
    torch.testing.assert_close(same, variance, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(other.prior_precisions, one.prior_precisions, rtol=1e-6, atol=0)


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_one_precision_for_all_does(name: str, tuned: bool) -> None:
    build, x = CASES[name]
    model = seeded(build)
    _, variance = fitted(model, x, lw.Isotropic(), tuned=tuned)
    _, other = fitted(rescaled(model, normalised(model, x).parts or (), 5.0), x, lw.Isotropic(), tuned=tuned)
    assert ((other - variance).norm() > 0.02 * variance.norm()).item()
    assert normalised(model, x).parts
