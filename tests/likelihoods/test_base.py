"""What holds for every likelihood: loss, score, curvature, root and draws belong together."""

from __future__ import annotations

from itertools import product
from math import pi
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, vmap

from lapwing.ground.errors import ConfigError, DataError, ShapeError
from lapwing.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    NegativeBinomial,
    Poisson,
    StudentT,
)
from tests.checker import unchecked

IGNORED = -100

EXPECTED = HeteroscedasticGaussian | NegativeBinomial | StudentT
"""Whose B is the expectation of what depends on the target."""


def flat(case: Any) -> tuple[Tensor, Tensor]:
    """Positions one after another: outputs [m, c], targets [m] or [m, c]."""
    lead = case.outputs.ndim - 1
    return case.outputs.flatten(0, lead - 1), case.targets.flatten(0, lead - 1)


def support(case: Any, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Targets [k, m] or [k, m, c] and weights [k, m] whose weighted sums are expectations, for outputs [m, c].

    Exact: all values of a discrete target (counts: up to 60, or 30), a Gauss-Hermite rule for a Gaussian one, and for
    one with Student-t noise a Gauss-Legendre rule.
    """
    likelihood = case.likelihood
    m, c = outputs.shape
    if isinstance(likelihood, Categorical):
        return torch.arange(c)[:, None].expand(c, m), torch.softmax(outputs, -1).mT
    if isinstance(likelihood, Bernoulli | Poisson | NegativeBinomial):
        values = range({Bernoulli: 2, Poisson: 60, NegativeBinomial: 30}[type(likelihood)])
        points = torch.tensor(list(product(values, repeat=c)), dtype=torch.float64)
        targets = points[:, None].expand(len(points), m, c)
        return targets, torch.exp(-likelihood.nll(outputs.expand_as(targets), targets))
    means = likelihood.mean(outputs)
    if isinstance(likelihood, StudentT):
        return heavy_tailed_support(likelihood, means)
    if isinstance(likelihood, HeteroscedasticGaussian):
        std = torch.exp(0.5 * outputs[:, means.shape[1] :])
    else:
        std = torch.tensor(likelihood.noise_std).expand_as(means)
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)
    indices = np.array(list(product(range(6), repeat=means.shape[1])))
    weight = torch.tensor(weights[indices].prod(1) / (2 * pi) ** (0.5 * means.shape[1]))
    return means + std * torch.tensor(nodes[indices])[:, None], weight[:, None].expand(len(indices), m)


def heavy_tailed_support(likelihood: StudentT, means: Tensor) -> tuple[Tensor, Tensor]:
    """With ``y = m + √ν σ tan θ`` the density of θ is as ``cos^(ν - 1) θ``: a Gauss-Legendre rule over θ."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    theta = 0.5 * pi * nodes
    weights = weights * np.cos(theta) ** (likelihood.df - 1)
    steps = likelihood.df**0.5 * likelihood.scale * np.tan(theta)
    indices = np.array(list(product(range(24), repeat=means.shape[1])))
    weight = torch.tensor((weights / weights.sum())[indices].prod(1))
    return means + torch.tensor(steps[indices])[:, None], weight[:, None].expand(len(indices), len(means))


def test_score_is_the_gradient_of_the_log_likelihood(case: Any) -> None:
    outputs, targets = flat(case)
    expected = -vmap(grad(case.likelihood.nll))(outputs, targets)
    torch.testing.assert_close(case.likelihood.score(outputs, targets), expected)


def test_hessian_is_the_second_derivative_of_the_loss(case: Any) -> None:
    outputs, targets = flat(case)
    second = vmap(hessian(case.likelihood.nll))(outputs, targets)
    if isinstance(case.likelihood, HeteroscedasticGaussian | StudentT):
        assert float(torch.linalg.eigvalsh(second).min()) < 0  # B is its expectation there: see the next test
    elif isinstance(case.likelihood, NegativeBinomial):
        assert float(torch.linalg.eigvalsh(second).min()) > 0  # likewise
    else:
        torch.testing.assert_close(case.likelihood.hessian(outputs, targets), second)


def test_hessian_is_the_expected_second_derivative_and_the_fisher_information(case: Any) -> None:
    outputs, _ = flat(case)
    likelihood = case.likelihood
    targets, weights = support(case, outputs)
    points = outputs.expand(len(targets), *outputs.shape)
    scores = likelihood.score(points, targets)
    first = torch.einsum("km,kmc->mc", weights, scores)
    fisher = torch.einsum("km,kmc,kmd->mcd", weights, scores, scores)
    torch.testing.assert_close(weights.sum(0), torch.ones(len(outputs), dtype=torch.float64))
    torch.testing.assert_close(first, torch.zeros_like(first))
    torch.testing.assert_close(fisher, likelihood.hessian(outputs))
    if isinstance(likelihood, EXPECTED):
        second = vmap(vmap(hessian(likelihood.nll)))(points, targets)
        expected_hessian = torch.einsum("km,kmcd->mcd", weights, second)
        torch.testing.assert_close(expected_hessian, likelihood.hessian(outputs))


def test_root_times_its_transpose_is_the_hessian(case: Any) -> None:
    for targets in (None, case.targets):
        root = case.likelihood.root(case.outputs, targets)
        curvature = case.likelihood.hessian(case.outputs, targets)
        assert root.shape[:-1] == case.outputs.shape
        torch.testing.assert_close(root @ root.mT, curvature, rtol=1e-13, atol=1e-15)


def test_event_axes_are_positions_and_nothing_more(case: Any) -> None:
    outputs, targets = flat(case)
    likelihood = case.likelihood
    for name in ("nll", "score", "hessian", "root"):
        method = getattr(likelihood, name)
        whole = method(case.outputs, case.targets)
        torch.testing.assert_close(whole.flatten(0, case.outputs.ndim - 2), method(outputs, targets))
    assert likelihood.nll(case.outputs, case.targets).shape == case.outputs.shape[:-1]


def test_draws_follow_the_mean_and_the_fisher_information(case: Any) -> None:
    outputs, _ = flat(case)
    draws = 4000
    wide = outputs.expand(draws, *outputs.shape)
    sampled = case.likelihood.draw(wide, generator=torch.Generator().manual_seed(1))
    scores = case.likelihood.score(wide, sampled)
    stderr = case.likelihood.hessian(outputs).diagonal(dim1=-2, dim2=-1).div(draws).sqrt()
    assert bool((scores.mean(0).abs() < 5 * stderr).all())
    outer = scores.unsqueeze(-1) * scores.unsqueeze(-2)
    gap = (outer.mean(0) - case.likelihood.hessian(outputs)).abs()
    assert bool((gap <= 5 * outer.std(0) / draws**0.5 + 1e-9).all())


def test_draws_are_valid_targets_and_repeat_with_the_generator(case: Any) -> None:
    many = case.outputs.repeat(20, *[1] * (case.outputs.ndim - 1))
    first = case.likelihood.draw(many, generator=torch.Generator().manual_seed(3))
    again = case.likelihood.draw(many, generator=torch.Generator().manual_seed(3))
    other = case.likelihood.draw(many, generator=torch.Generator().manual_seed(4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    case.likelihood.check(many, first)
    assert case.likelihood.draw(case.outputs).shape == case.targets.shape


def test_dtype_and_shape_follow_the_outputs(case: Any) -> None:
    outputs = case.outputs.float()
    targets = case.targets.float() if case.targets.is_floating_point() else case.targets
    for name in ("nll", "score", "hessian", "root"):
        assert getattr(case.likelihood, name)(outputs, targets).dtype == torch.float32
    assert case.likelihood.mean(outputs).dtype == torch.float32


def test_canonical_moves_the_class_axis_and_check_passes(case: Any) -> None:
    likelihood = case.likelihood
    raw = case.outputs.movedim(-1, likelihood.class_dim)
    outputs = likelihood.canonical(raw)
    assert torch.equal(outputs, case.outputs)
    if case.targets.is_floating_point():
        targets = likelihood.canonical_targets(outputs, case.targets.movedim(-1, likelihood.class_dim))
    else:
        targets = likelihood.canonical_targets(outputs, case.targets.int())
    assert torch.equal(targets, case.targets)
    likelihood.check(outputs, targets)


def test_likelihoods_are_frozen_comparable_and_hashable(case: Any) -> None:
    assert case.likelihood == case.likelihood
    assert len({case.likelihood, case.likelihood}) == 1
    assert case.likelihood != "Gaussian"


@pytest.mark.parametrize("event_dim, class_dim", [(0, 2), (1, 0), (2, -2), (1, 1.5)])
def test_axes_that_contradict_each_other_are_refused(event_dim: int, class_dim: Any) -> None:
    with unchecked(), pytest.raises(ConfigError, match=f"Got event_dim={event_dim}, class_dim={class_dim}"):
        Categorical(event_dim=event_dim, class_dim=class_dim)


@pytest.mark.parametrize("event_dim", [-1, 1.5, "1"])
def test_event_axes_are_a_whole_number(event_dim: Any) -> None:
    with unchecked(), pytest.raises(ConfigError, match="event_dim"):
        Categorical(event_dim=event_dim)


def test_event_axes_are_no_more_than_a_tensor_has() -> None:
    assert Gaussian(event_dim=62).event_dim == 62
    with pytest.raises(ConfigError, match="event_dim of at most 62"):
        Gaussian(event_dim=10**9)


def test_outputs_without_a_class_axis_are_refused_with_what_to_do() -> None:
    with pytest.raises(ShapeError, match=r"outputs of shape \[n, c\].*Got shape \[4\].*unsqueeze\(-1\)"):
        Gaussian().canonical(torch.zeros(4))
    with pytest.raises(ShapeError, match=r"outputs of shape \[n, c\] for event_dim=0.*event_dim=1 for tokens"):
        Categorical().canonical(torch.zeros(2, 3, 4))
    with pytest.raises(ShapeError, match=r"event_dim=2 for pixels, with class_dim=1 where channels come first"):
        Gaussian().canonical(torch.zeros(2, 1, 4, 4))
    with pytest.raises(ShapeError, match=r"outputs of shape \[n, c, e1, e2\].*Got shape \[2, 3, 4\]"):
        Categorical(event_dim=2, class_dim=1).canonical(torch.zeros(2, 3, 4))
    with pytest.raises(ShapeError, match=r"Got shape \[2, 0\]"):
        Gaussian().check(torch.zeros(2, 0), torch.zeros(2, 0))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_outputs_that_are_not_finite_are_refused(case: Any, bad: float) -> None:
    outputs = case.outputs.clone()
    outputs.flatten()[1] = bad
    with pytest.raises(DataError, match=rf"finite outputs\. Got 1 NaN or infinite of {outputs.numel()}"):
        case.likelihood.check(outputs, case.targets)


def test_targets_of_real_likelihoods_must_be_finite() -> None:
    for likelihood, width in (
        (Gaussian(), 1),
        (Poisson(), 1),
        (NegativeBinomial(), 1),
        (HeteroscedasticGaussian(), 2),
        (StudentT(), 1),
    ):
        with pytest.raises(DataError, match=r"finite targets\. Got 1 NaN or infinite of 2"):
            likelihood.check(torch.zeros(2, width), torch.tensor([[1.0], [float("nan")]]))
