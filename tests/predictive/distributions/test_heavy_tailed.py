"""Real targets with Student-t noise: moments, densities, intervals and draws belong together, and are scipy's."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from lapwing.ground.errors import ConfigError, DataError, ShapeError
from lapwing.likelihoods import Gaussian, StudentT
from lapwing.moments import BasisMoments, Draws, JointMoments, Moments
from lapwing.predictive.distributions import HeavyTailedRegression, Regression
from tests.posterior_cases import normal, refused

DF, SCALE = 4.0, 0.6


def moments(n: int = 3, c: int = 2) -> Moments:
    root = normal(n, c, c, seed=5)
    return Moments(normal(n, c), root @ root.mT)


def heavy(df: float = DF, scale: float = SCALE) -> HeavyTailedRegression:
    return HeavyTailedRegression(moments(), df, scale)


def test_moments_are_those_of_the_sum() -> None:
    p = heavy()
    torch.testing.assert_close(p.variance, p.outputs.variance + stats.t(DF, scale=SCALE).var())
    torch.testing.assert_close(p.std, p.variance.sqrt())
    torch.testing.assert_close(p.covariance.diagonal(dim1=-2, dim2=-1), p.variance)
    torch.testing.assert_close(p.covariance[:, 0, 1], p.outputs.covariance[:, 0, 1])
    assert p.mean is p.outputs.mean and p.latent is p.outputs


@pytest.mark.parametrize("df", [0.5, 2.0])
def test_without_a_finite_variance_all_else_is_finite(df: float) -> None:
    p = heavy(df)
    y = normal(3, 2, seed=2)
    assert bool(p.variance.isinf().all()) and bool(p.covariance.diagonal(dim1=-2, dim2=-1).isinf().all())
    assert bool(p.covariance[:, 0, 1].isfinite().all())
    low, high = p.interval()
    for found in (p.uncertainty, p.epistemic, p.log_prob(y), low, high, torch.tensor(list(p.scores(y).values()))):
        assert bool(found.isfinite().all())


@pytest.mark.parametrize("level", [0.01, 0.5, 0.95, 0.9999])
def test_ends_are_where_the_distribution_function_says(level: float) -> None:
    p = heavy()
    low, high = p.interval(level)
    torch.testing.assert_close(p.cdf(low), torch.full_like(low, 0.5 * (1 - level)), rtol=0, atol=1e-10)
    torch.testing.assert_close(p.cdf(high), torch.full_like(low, 0.5 * (1 + level)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("df", [0.1, 1.0, 4.0, 1e6])
@pytest.mark.parametrize("scale", [1e-6, 2.0, 1e6])
def test_of_a_known_output_they_are_those_of_t(df: float, scale: float) -> None:
    p = HeavyTailedRegression(Moments.certain(torch.zeros(1, 1).double()), df, scale)
    for level in (0.1, 0.95):
        known = stats.t(df, scale=scale).ppf(0.5 * (1 + level))
        low, high = (float(end) for end in p.interval(level))
        assert high == pytest.approx(known, rel=1e-10) and low == pytest.approx(-known, rel=1e-10)


@pytest.mark.parametrize("outputs", [moments(), BasisMoments(normal(3, 2), normal(3, 2, seed=1).square())], ids=type)
def test_of_many_degrees_of_freedom_it_is_a_regression_with_gaussian_noise(outputs: Moments | BasisMoments) -> None:
    y = normal(3, 2, seed=2)
    found, expected = HeavyTailedRegression(outputs, 1e9, SCALE), Regression(outputs, torch.tensor(SCALE**2))
    torch.testing.assert_close(found.log_prob(y), expected.log_prob(y), rtol=1e-6, atol=1e-6)
    for ours, theirs in zip(found.interval(0.9), expected.interval(0.9), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    for name in ("std", "uncertainty", "covariance"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))


def test_noise_or_not() -> None:
    p = heavy()
    gaussian = Regression(p.outputs, torch.ones(2))
    for ours, theirs in zip(p.interval(0.9, noise=False), gaussian.interval(0.9, noise=False), strict=True):
        torch.testing.assert_close(ours, theirs)
    with refused(ConfigError, "level between 0 and 1. Got level=95.0"):
        p.interval(95.0)


def test_draws_are_mixed_one_by_one() -> None:
    """Of drawn outputs each has t noise: a mixture of t distributions at the draws."""
    values = 3 * normal(5, 4, 1)
    p = HeavyTailedRegression(Draws(values), DF, SCALE)
    known = [stats.t(DF, loc=each, scale=SCALE) for each in values[:, 2, 0].tolist()]
    y = torch.full((4, 1), 0.8, dtype=torch.float64)
    density = sum(each.pdf(0.8) for each in known) / 5
    assert float(p.log_prob(y)[2]) == pytest.approx(math.log(density), rel=1e-10)
    assert float(p.cdf(y)[2]) == pytest.approx(sum(each.cdf(0.8) for each in known) / 5, abs=1e-12)
    for end, share in zip(p.interval(0.9), (0.05, 0.95), strict=True):
        assert sum(each.cdf(float(end[2])) for each in known) / 5 == pytest.approx(share, abs=1e-10)


def test_ends_of_draws_that_lie_far_apart_are_found() -> None:
    values = normal(5, 1, 1)
    values[0] = 1000
    low, high = HeavyTailedRegression(Draws(values), DF, SCALE).interval(0.9)
    known = [stats.t(DF, loc=each, scale=SCALE) for each in values[:, 0, 0].tolist()]
    for end, share in ((low, 0.05), (high, 0.95)):
        assert sum(each.cdf(float(end)) for each in known) / 5 == pytest.approx(share, abs=1e-10)


def test_draws_fall_as_the_distribution_says(generator: torch.Generator) -> None:
    p = heavy()
    y = p.sample(4000, generator=generator)
    shares = torch.stack([p.cdf(each) for each in y[:400]])
    for place in range(2):
        assert stats.kstest(shares[:, 1, place].numpy(), "uniform").pvalue > 1e-3
    low, high = p.interval(0.8)
    inside = ((y > low) & (y < high)).double().mean(0)
    assert bool(((inside - 0.8).abs() < 5 * (0.16 / 4000) ** 0.5).all())
    assert torch.equal(
        p.sample(2, noise=False, generator=torch.Generator().manual_seed(1)),
        p.outputs.sample(2, generator=torch.Generator().manual_seed(1)),
    )


def test_joint_outputs_have_joint_covariance_and_the_same_marginals() -> None:
    root = normal(6, 6, seed=4)
    joint = JointMoments(normal(3, 2), (root @ root.mT).view(3, 2, 3, 2))
    p, alone = HeavyTailedRegression(joint, DF, SCALE), HeavyTailedRegression(joint.marginal(), DF, SCALE)
    expected = root @ root.mT + stats.t(DF, scale=SCALE).var() * torch.eye(6).double()
    torch.testing.assert_close(p.covariance.reshape(6, 6), expected)
    y = normal(3, 2, seed=2)
    torch.testing.assert_close(p.log_prob(y), alone.log_prob(y))
    assert p.scores(y) == pytest.approx(dict(alone.scores(y)))


def test_ends_and_densities_can_be_differentiated() -> None:
    mean, variance = normal(2, 1), normal(2, 1, 1).square() + 0.1

    def told(m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p = HeavyTailedRegression(Moments(m, v), 3.0, SCALE)
        return (*p.interval(0.9), p.log_prob(torch.ones_like(m)), p.cdf(torch.ones_like(m)))

    assert torch.autograd.gradcheck(told, (mean.requires_grad_(), variance.requires_grad_()))


def test_scores_are_those_of_its_parts() -> None:
    p, y = heavy(), 3 * normal(3, 2, seed=2)
    low, high = p.interval()
    scores = p.scores(y)
    assert list(scores) == ["nll", "rmse", "picp", "interval_score", "width"]
    assert scores["nll"] == pytest.approx(-float(p.log_prob(y).mean()))
    assert scores["rmse"] == pytest.approx(float((y - p.mean).square().mean().sqrt()))
    assert scores["picp"] == pytest.approx(float(((low <= y) & (y <= high)).double().mean()))
    assert scores["width"] == pytest.approx(float((high - low).mean()))


def test_single_precision_has_the_answers_of_double() -> None:
    mean, covariance = moments().mean, moments().covariance
    single = HeavyTailedRegression(Moments(mean.float(), covariance.float()), DF, SCALE)
    y = torch.tensor([[1e20, 0.0], [1.0, 2.0], [0.0, -1e20]])
    torch.testing.assert_close(single.log_prob(y), heavy().log_prob(y.double()), rtol=1e-6, atol=1e-5)
    low, _ = single.interval()
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, heavy().interval()[0].float())


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1e160])
def test_targets_that_have_no_density_are_refused(wrong: float) -> None:
    with refused(DataError, "finite targets up to 1e+150. Got 1 others of 6"):
        heavy().log_prob(torch.where(torch.arange(6).view(3, 2) == 4, wrong, normal(3, 2)))


@pytest.mark.parametrize(("scale", "variance"), [(1e-100, 0.0), (1e-100, 1.0), (1.0, 1.0)])
def test_targets_of_any_other_size_have_one(scale: float, variance: float) -> None:
    outputs = Moments(torch.zeros(1, 1).double(), torch.full((1, 1, 1), variance).double())
    p = HeavyTailedRegression(outputs, DF, scale)
    known = stats.t(DF).logpdf(1e75) - 5 * 75 * math.log(10) + DF * math.log(scale)  # a power law
    assert float(p.log_prob(torch.full((1, 1), 1e150, dtype=torch.float64))) == pytest.approx(known, rel=1e-9)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 2)])
def test_targets_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    for p in (heavy(), Regression(moments(), torch.ones(2))):
        with refused(ShapeError, "one target an output, [3, 2]. Got"):
            p.log_prob(torch.zeros(shape))
    with refused(ShapeError, "one target an output"):
        heavy().cdf(torch.zeros(shape))
    single = HeavyTailedRegression(moments(c=1), DF, SCALE)
    with refused(ShapeError, "Try targets[:, None]"):
        single.log_prob(torch.zeros(3))


def test_likelihoods_make_it() -> None:
    p = StudentT(3.0, 0.5).predictive(moments())
    assert isinstance(p, HeavyTailedRegression) and (p.df, p.scale) == (3.0, 0.5)
    assert not isinstance(Gaussian().predictive(moments()), HeavyTailedRegression)
