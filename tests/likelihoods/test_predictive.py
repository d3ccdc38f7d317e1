"""From a likelihood and what is known of outputs to the right distribution, by the link that a posterior carries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError, UnsupportedError
from lapwing.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
)
from lapwing.predictive import (
    Classification,
    Counts,
    Draws,
    JointMoments,
    Moments,
    MultiLabel,
    Regression,
    expected_sigmoid,
    laplace_bridge,
    monte_carlo,
    pairwise,
    probit,
    probit_binary,
    quasi_monte_carlo,
)
from tests.checker import unchecked

LINKS: list[Any] = ["probit", "pairwise", "bridge", "qmc", "mc"]


def joint_and_marginal(n: int = 3, c: int = 2, scale: float = 0.5) -> tuple[JointMoments, Moments]:
    factor = scale * torch.randn(n * c, n * c, dtype=torch.float64)
    mean = torch.randn(n, c, dtype=torch.float64)
    joint = JointMoments(mean, (factor @ factor.mT).reshape(n, c, n, c))
    return joint, joint.marginal()


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def test_categorical_takes_each_link() -> None:
    joint, moments = joint_and_marginal(c=3)
    for outputs in (joint, moments):
        by_link = {link: Categorical().predictive(outputs, link, generator=seeded()) for link in LINKS}
        assert all(isinstance(p, Classification) and p.logits is outputs for p in by_link.values())
        torch.testing.assert_close(by_link["probit"].probs, probit(moments))
        torch.testing.assert_close(by_link["bridge"].probs, laplace_bridge(moments))
        torch.testing.assert_close(by_link["pairwise"].probs, pairwise(moments))
        torch.testing.assert_close(by_link["qmc"].probs, quasi_monte_carlo(moments))
        probs, stderr = monte_carlo(moments, generator=seeded())
        torch.testing.assert_close(by_link["mc"].probs, probs)
        torch.testing.assert_close(by_link["mc"].stderr, stderr)
        assert by_link["probit"].stderr is None
        assert torch.equal(Categorical().predictive(outputs).probs, by_link["qmc"].probs)  # the default


def test_bernoulli_takes_every_link_but_the_bridge() -> None:
    _, moments = joint_and_marginal()
    exact = Bernoulli().predictive(moments)
    assert isinstance(exact, MultiLabel)
    torch.testing.assert_close(exact.probs, expected_sigmoid(moments.mean, moments.variance))
    for link in ("probit", "pairwise"):  # a single logit has no pairs
        assert torch.equal(Bernoulli().predictive(moments, link).probs, probit_binary(moments))
    mc = Bernoulli().predictive(moments, "mc", samples=20_000, generator=seeded())
    assert isinstance(mc, MultiLabel) and mc.stderr is not None
    assert bool(((mc.probs - exact.probs).abs() < 5 * mc.stderr).all())
    with pytest.raises(UnsupportedError, match="'qmc', 'probit', 'pairwise' or 'mc' for Bernoulli"):
        Bernoulli().predictive(moments, "bridge")


@pytest.mark.parametrize("link", LINKS)
def test_a_temperature_divides_mean_and_standard_deviation_of_the_logits(link: Any) -> None:
    joint, moments = joint_and_marginal(c=3)
    half = Moments(moments.mean / 2, moments.covariance / 4)
    expected = Categorical().predictive(half, link, generator=seeded())
    draws = Draws(moments.sample(7))
    for outputs in (joint, moments):
        found = Categorical().predictive(outputs, link, temperature=2.0, generator=seeded())
        torch.testing.assert_close(found.probs, expected.probs)
        torch.testing.assert_close(found.logits.variance, half.variance)
    found = Categorical().predictive(draws, link, temperature=2.0)
    torch.testing.assert_close(found.probs, torch.softmax(draws.values / 2, -1).mean(0))


def test_temperatures_that_mean_nothing_are_refused() -> None:
    _, moments = joint_and_marginal()
    for temperature in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="a temperature > 0"):
            Categorical().predictive(moments, temperature=temperature)
    with pytest.raises(UnsupportedError, match="classes or labels for a temperature"):
        Gaussian().predictive(moments, temperature=2.0)


def test_draws_are_averaged_after_the_link() -> None:
    values = torch.randn(30, 4, 3, dtype=torch.float64)
    p = Categorical().predictive(Draws(values))
    assert isinstance(p, Classification) and p.stderr is not None
    torch.testing.assert_close(p.probs, torch.softmax(values, -1).mean(0))
    torch.testing.assert_close(p.stderr, torch.softmax(values, -1).std(0) / 30**0.5)
    torch.testing.assert_close(Bernoulli().predictive(Draws(values)).probs, torch.sigmoid(values).mean(0))
    assert Categorical().predictive(Draws(values[:1])).stderr is None


def test_gaussian_adds_its_noise() -> None:
    joint, moments = joint_and_marginal()
    for outputs in (joint, moments, Draws(moments.sample(5))):
        p = Gaussian((2.0, 4.0)).predictive(outputs)
        assert isinstance(p, Regression)
        assert p.noise.tolist() == [0.5, 0.25]
        torch.testing.assert_close(p.variance, outputs.variance + p.noise)


def test_heteroscedastic_noise_is_the_expected_variance() -> None:
    joint, moments = joint_and_marginal(c=4)
    draws = Draws(moments.sample(100_000, generator=seeded()))
    expected = torch.exp(moments.mean[:, 2:] + 0.5 * moments.variance[:, 2:])
    for outputs in (joint, moments, draws):
        p = HeteroscedasticGaussian().predictive(outputs)
        assert isinstance(p, Regression) and p.mean.shape == (3, 2)
        tolerance = 0.05 if outputs is draws else 1e-12
        torch.testing.assert_close(p.noise, expected, rtol=tolerance, atol=0)
        torch.testing.assert_close(p.outputs.mean, outputs.mean[:, :2])
    targets = HeteroscedasticGaussian().draw(draws.values, generator=seeded())
    p = HeteroscedasticGaussian().predictive(moments)
    torch.testing.assert_close(targets.var(0), p.variance, rtol=0.05, atol=0)


def test_poisson_moments_are_those_of_a_lognormal_mixture() -> None:
    joint, moments = joint_and_marginal(n=2, scale=0.3)
    p = Poisson().predictive(moments)
    assert isinstance(p, Counts)
    k = 200_000
    draws = p.sample(k, generator=seeded())
    assert bool(((draws.mean(0) - p.mean).abs() < 5 * (p.variance / k).sqrt()).all())
    torch.testing.assert_close(draws.var(0), p.variance, rtol=0.05, atol=0)
    for i in range(2):
        torch.testing.assert_close(draws[:, i].mT.cov(), p.covariance[i], rtol=0.05, atol=0.05)
    together = Poisson().predictive(joint)
    assert isinstance(together, Counts)
    torch.testing.assert_close(together.mean, p.mean)
    torch.testing.assert_close(together.variance, p.variance)
    torch.testing.assert_close(together.covariance[0, :, 0], p.covariance[0])
    many = together.sample(k, generator=seeded()).flatten(1)
    torch.testing.assert_close(many.mT.cov().reshape(2, 2, 2, 2), together.covariance, rtol=0.05, atol=0.05)


def test_poisson_draws_are_averaged() -> None:
    values = torch.randn(40, 3, 2, dtype=torch.float64)
    p = Poisson().predictive(Draws(values))
    assert isinstance(p, Counts)
    torch.testing.assert_close(p.mean, values.exp().mean(0))
    torch.testing.assert_close(p.variance, values.exp().var(0) + p.mean)


@pytest.mark.parametrize("likelihood, width", [(Poisson(), 1), (HeteroscedasticGaussian(), 2)])
def test_expectations_that_overflow_are_refused(likelihood: Likelihood, width: int) -> None:
    huge = Moments(torch.zeros(1, width), 1e4 * torch.eye(width).expand(1, width, width))
    with pytest.raises(NumericalError, match=r"finite expected (rates|noise variances).*exponent of 5000"):
        likelihood.predictive(huge)


def test_variances_and_draws_that_overflow_are_refused() -> None:
    """Single precision holds the rate e^50 and no square of it; networks with drawn weights may say anything."""
    wide = Moments(torch.full((1, 1), 40.0), 20 * torch.eye(1).expand(1, 1, 1))
    with pytest.raises(NumericalError, match=r"finite variances of rates.*float64"):
        Poisson().predictive(wide)
    found = Poisson().predictive(Moments(wide.mean.double(), wide.covariance.double()))
    assert isinstance(found, Counts) and bool(found.std.isfinite().all())
    for draw, said in ((60.0, "finite variances of rates.*exponent of 120"), (200.0, "finite rates.*exponent of 200")):
        with pytest.raises(NumericalError, match=said):
            Poisson().predictive(Draws(torch.tensor([[[0.0]], [[draw]]])))
    with pytest.raises(NumericalError, match=r"finite noise variances exp f.*exponent of 200"):
        HeteroscedasticGaussian().predictive(Draws(torch.tensor([[[0.0, 1.0]], [[0.0, 200.0]]])))


def test_token_outputs_keep_their_axes() -> None:
    moments = Moments(torch.randn(2, 5, 3), torch.eye(3).expand(2, 5, 3, 3))
    for link in LINKS:
        p = Categorical(event_dim=1).predictive(moments, link)
        assert isinstance(p, Classification)
        assert p.probs.shape == (2, 5, 3) and p.labels.shape == (2, 5)
        assert p.sample(4).shape == (4, 2, 5, 3)


def test_joint_targets_of_certain_outputs_have_only_their_noise() -> None:
    p = Gaussian(4.0).predictive(Moments.certain(torch.zeros(3, 1)))
    assert isinstance(p, Regression)
    assert p.std.tolist() == [[0.5]] * 3
    assert float(p.outputs.std.max()) == 0.0


def test_an_unknown_link_is_refused() -> None:
    _, moments = joint_and_marginal()
    with pytest.raises(ConfigError, match=r"one of probit, pairwise, bridge, qmc, mc\. Got 'softmax'"), unchecked():
        Categorical().predictive(moments, "softmax")


def test_a_likelihood_without_its_distribution_is_none() -> None:
    @dataclass(frozen=True)
    class Other(Likelihood):
        def canonical_targets(self, outputs: Tensor, targets: Tensor) -> Tensor: ...
        def _nll(self, outputs: Tensor, targets: Tensor) -> Tensor: ...
        def _score(self, outputs: Tensor, targets: Tensor) -> Tensor: ...
        def _hessian(self, outputs: Tensor, targets: Tensor | None = None) -> Tensor: ...
        def _root(self, outputs: Tensor, targets: Tensor | None = None) -> Tensor: ...
        def draw(self, outputs: Tensor, *, generator: torch.Generator | None = None) -> Tensor: ...
        def mean(self, outputs: Tensor) -> Tensor: ...
        def _count(self, targets: Tensor) -> int: ...
        def _check_targets(self, outputs: Tensor, targets: Tensor) -> None: ...

    with pytest.raises(TypeError, match=r"abstract method '?_predictive"):
        Other()


def test_probabilities_are_finite_for_extreme_logits() -> None:
    mean = torch.tensor([[1e4, -1e4, 0.0]])
    for link in LINKS:
        p = Categorical().predictive(Moments(mean, torch.eye(3).expand(1, 3, 3)), link)
        assert bool(torch.isfinite(p.probs).all()) and math.isclose(float(p.probs.sum()), 1.0, rel_tol=1e-6)


@pytest.mark.parametrize("link", ["probit", "pairwise", "bridge", "qmc", "mc"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_probabilities_of_half_precision_add_up_to_one(
    dtype: torch.dtype, link: Any, generator: torch.Generator
) -> None:
    mean = 3 * torch.randn(9, 7, generator=generator)
    moments = Moments(mean.to(dtype), torch.eye(7, dtype=dtype).expand(9, 7, 7))
    draws = Draws(mean.to(dtype).expand(2, 9, 7))
    for p in (Categorical().predictive(moments, link), Categorical().predictive(draws)):
        torch.testing.assert_close(p.probs.double().sum(-1), torch.ones(9, dtype=torch.float64), rtol=0, atol=1e-6)
        assert isinstance(p, Classification)
        drawn = p.sample(2).double().sum(-1)
        torch.testing.assert_close(drawn, torch.ones(2, 9, dtype=torch.float64), rtol=0, atol=1e-6)
