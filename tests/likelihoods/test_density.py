"""Densities: of each target against torch.distributions, of all at once exact or within their standard error."""

from __future__ import annotations

import pytest
import torch
from numpy.polynomial.hermite import hermgauss
from torch.distributions import MultivariateNormal

from lapwing.ground.errors import ConfigError, DataError, NumericalError, ShapeError
from lapwing.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    NegativeBinomial,
    Poisson,
)
from lapwing.likelihoods.density import held_out_losses, log_joint
from lapwing.moments.outputs import Moments
from lapwing.predictive import Classification, Draws, JointMoments, MultiLabel, Regression, probit_binary


def random_joint(n: int = 3, c: int = 2) -> JointMoments:
    factor = 0.7 * torch.randn(n * c, 2, dtype=torch.float64)
    return JointMoments(torch.randn(n, c, dtype=torch.float64), (factor @ factor.mT).reshape(n, c, n, c))


def test_gaussian_is_the_multivariate_normal_density() -> None:
    joint, likelihood = random_joint(), Gaussian((2.0, 4.0))
    targets = torch.randn(3, 2, dtype=torch.float64)
    noise = torch.tensor([0.5, 0.25], dtype=torch.float64).repeat(3)
    normal = MultivariateNormal(joint.mean.flatten(), joint.covariance.reshape(6, 6) + torch.diag(noise))
    estimate = log_joint(likelihood, joint, targets)
    assert estimate.value == pytest.approx(float(normal.log_prob(targets.flatten())), rel=1e-12)
    assert (estimate.stderr, estimate.samples) == (0.0, 0)


def test_draws_agree_with_the_closed_form_within_their_standard_error() -> None:
    joint, likelihood = random_joint(), Gaussian(1.0)
    targets = torch.randn(3, 2, dtype=torch.float64)
    exact = log_joint(likelihood, joint, targets).value
    draws = Draws(joint.sample(20_000, generator=torch.Generator().manual_seed(0)))
    estimate = log_joint(likelihood, draws, targets)
    assert 0 < estimate.stderr < 0.05 and estimate.samples == 20_000
    assert abs(estimate.value - exact) < 5 * estimate.stderr


def test_certain_logits_give_the_sum_of_log_probabilities() -> None:
    joint = JointMoments(torch.randn(4, 3), torch.zeros(4, 3, 4, 3))
    targets = torch.tensor([0, 2, -100, 1])
    estimate = log_joint(Categorical(), joint, targets, samples=8)
    assert estimate.value == pytest.approx(-float(Categorical().nll(joint.mean, targets).sum()), rel=1e-6)
    assert estimate.stderr == pytest.approx(0.0, abs=1e-6)


def test_shared_uncertainty_makes_equal_answers_more_likely_than_separate_uncertainty() -> None:
    root = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64) * 3
    joint = JointMoments(torch.zeros(2, 2, dtype=torch.float64), torch.outer(root, root).reshape(2, 2, 2, 2))
    equal = log_joint(Categorical(), joint, torch.tensor([0, 0]), generator=torch.Generator().manual_seed(0))
    unequal = log_joint(Categorical(), joint, torch.tensor([0, 1]), generator=torch.Generator().manual_seed(0))
    half = float(probit_binary(Moments.certain(torch.zeros(1, 1, dtype=torch.float64)))) ** 2
    assert equal.value > torch.tensor(half).log() > unequal.value


def test_bad_requests_are_refused() -> None:
    joint = random_joint()
    with pytest.raises(ConfigError, match="samples of at least 2"):
        log_joint(Categorical(), joint, torch.zeros(3, dtype=torch.long), samples=1)
    indefinite = JointMoments(torch.zeros(2, 1), -9 * torch.eye(2).reshape(2, 1, 2, 1))
    with pytest.raises(NumericalError, match=r"fails to factorise at row 1 of 2"):
        log_joint(Gaussian(), indefinite, torch.zeros(2, 1))


def test_a_single_draw_has_an_unknown_error() -> None:
    estimate = log_joint(Gaussian(), Draws(torch.zeros(1, 2, 1)), torch.zeros(2, 1))
    assert estimate.stderr == float("inf") and estimate.samples == 1


class TestLogProb:
    """Against ``torch.distributions``, one number a position that has a target."""

    @pytest.mark.parametrize("shape", [(5,), (2, 4)])
    def test_classes_leave_out_what_is_ignored(self, shape: tuple[int, ...]) -> None:
        p = Categorical(event_dim=len(shape) - 1).predictive(moments(*shape, 3))
        assert isinstance(p, Classification)
        targets = torch.randint(0, 3, shape)
        targets[0] = torch.tensor(-100) if len(shape) == 1 else torch.tensor([1, -100, 0, -100])
        kept = targets != -100
        expected = torch.distributions.Categorical(p.probs).log_prob(targets.clamp_min(0))[kept]
        actual = p.log_prob(targets)
        assert actual.shape == (int(kept.sum()),)
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)

    def test_a_probability_that_underflowed_is_the_smallest_number(self) -> None:
        p = Categorical().predictive(Moments.certain(torch.tensor([[0.0, 500.0]])))
        assert float(p.log_prob(torch.tensor([0]))) == pytest.approx(-87.336544, rel=1e-6)

    @pytest.mark.parametrize("shape", [(5, 3), (2, 4, 3)])
    def test_many_labels_add_up(self, shape: tuple[int, ...]) -> None:
        p = Bernoulli(event_dim=len(shape) - 2).predictive(moments(*shape))
        assert isinstance(p, MultiLabel)
        targets = torch.randint(0, 2, shape).double()
        expected = torch.distributions.Bernoulli(p.probs).log_prob(targets).sum(-1).flatten()
        torch.testing.assert_close(p.log_prob(targets), expected, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("shape", [(5, 2), (2, 4, 2)])
    @pytest.mark.parametrize("kind", ["one noise", "a noise an output", "a noise an input"])
    def test_real_targets_add_up(self, kind: str, shape: tuple[int, ...]) -> None:
        event_dim = len(shape) - 2
        if kind == "a noise an input":
            p = HeteroscedasticGaussian(event_dim=event_dim).predictive(moments(*shape[:-1], 4))
        else:
            precision = 2.0 if kind == "one noise" else (0.5, 3.0)
            p = Gaussian(precision, event_dim=event_dim).predictive(moments(*shape))
        assert isinstance(p, Regression)
        targets = torch.randn(shape, dtype=torch.float64)
        expected = torch.distributions.Normal(p.mean, p.std).log_prob(targets).sum(-1).flatten()
        torch.testing.assert_close(p.log_prob(targets), expected, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("shape", [(5, 2), (2, 4, 2)])
    def test_certain_counts_are_poisson(self, shape: tuple[int, ...]) -> None:
        rates = torch.randn(shape, dtype=torch.float64)
        p = Poisson(event_dim=len(shape) - 2).predictive(Moments.certain(rates))
        targets = torch.randint(0, 5, shape).double()
        expected = torch.distributions.Poisson(rates.exp()).log_prob(targets).sum(-1).flatten()
        torch.testing.assert_close(p.log_prob(targets), expected, rtol=1e-12, atol=1e-12)

    def test_counts_average_over_the_rate(self) -> None:
        """One count with a Gaussian log rate, by Gauss-Hermite quadrature."""
        mean, variance = 0.4, 0.3
        p = Poisson().predictive(
            Moments(torch.tensor([[mean]], dtype=torch.float64), torch.tensor([[[variance]]], dtype=torch.float64))
        )
        nodes, weights = (torch.as_tensor(part) for part in hermgauss(60))
        rates = torch.exp(mean + (2 * variance) ** 0.5 * nodes)
        for count in (0.0, 1.0, 4.0):
            densities = torch.distributions.Poisson(rates).log_prob(torch.tensor(count).double()).exp()
            exact = float(torch.log((weights * densities).sum() / weights.sum()))
            found = p.log_prob(torch.full((1, 1), count).double())
            assert float(found) == pytest.approx(exact, rel=1e-9)

    def test_counts_of_one_position_share_their_draw(self) -> None:
        """Two counts of one rate: larger together than the product of the two alone."""
        covariance = torch.ones(1, 2, 2, dtype=torch.float64)
        p = Poisson().predictive(Moments(torch.zeros(1, 2, dtype=torch.float64), covariance))
        targets = torch.full((1, 2), 6.0, dtype=torch.float64)
        seed = torch.Generator().manual_seed(0)
        both = float(p.log_prob(targets, generator=seed))
        one = Poisson().predictive(Moments(torch.zeros(1, 1, dtype=torch.float64), covariance[:, :1, :1]))
        assert both > 2 * float(one.log_prob(targets[:, :1], generator=seed)) + 0.5

    def test_the_density_of_a_count_is_a_number_and_no_draw(self) -> None:
        p, targets = Poisson().predictive(moments(3, 2)), torch.ones(3, 2).double()
        found = [p.log_prob(targets, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
        assert torch.equal(found[0], found[1])

    def test_joint_outputs_give_the_density_of_each(self) -> None:
        joint, targets = random_joint(), torch.randn(3, 2, dtype=torch.float64)
        together, alone = (Gaussian().predictive(outputs) for outputs in (joint, joint.marginal()))
        torch.testing.assert_close(together.log_prob(targets), alone.log_prob(targets))


class TestTargetsOf:
    @pytest.mark.parametrize(
        ("likelihood", "outputs", "targets", "shape"),
        [
            (Categorical(), (4, 3), torch.tensor([0, 2, -100, 1]), (4,)),
            (Categorical(event_dim=1), (2, 4, 3), torch.zeros(2, 4, dtype=torch.long), (2, 4)),
            (Bernoulli(), (4, 1), torch.tensor([0, 1, 1, 0]), (4, 1)),
            (Gaussian(), (4, 1), torch.zeros(4), (4, 1)),
            (Gaussian((1.0, 2.0)), (4, 2), torch.zeros(4, 2), (4, 2)),
            (HeteroscedasticGaussian(), (4, 2), torch.zeros(4), (4, 1)),
            (HeteroscedasticGaussian(), (4, 4), torch.zeros(4, 2), (4, 2)),
            (Poisson(), (4, 1), torch.tensor([3, 0, 1, 2]), (4, 1)),
        ],
        ids=lambda value: str(value) if isinstance(value, Likelihood) else "",
    )
    def test_fit_the_distribution(
        self, likelihood: Likelihood, outputs: tuple[int, ...], targets: torch.Tensor, shape: tuple[int, ...]
    ) -> None:
        p = likelihood.predictive(moments(*outputs))
        canonical = likelihood.targets_of(p, targets)
        assert canonical.shape == shape
        assert torch.equal(canonical.flatten(), targets.flatten().to(canonical))
        assert canonical.dtype == (torch.long if isinstance(likelihood, Categorical) else torch.float64)
        assert torch.isfinite(p.log_prob(canonical)).all()

    def test_means_far_below_zero_are_no_log_variances(self) -> None:
        likelihood = HeteroscedasticGaussian()
        p = likelihood.predictive(Moments.certain(torch.tensor([[-1e4, 0.0]])))
        assert likelihood.targets_of(p, torch.tensor([-1e4])).tolist() == [[-1e4]]

    def test_are_refused_where_they_do_not_fit(self) -> None:
        p = Categorical().predictive(moments(4, 3))
        with pytest.raises(DataError, match="labels"):
            Categorical().targets_of(p, torch.tensor([0, 1, 2, 3]))
        with pytest.raises(ShapeError, match="shape"):
            Categorical().targets_of(p, torch.tensor([0, 1]))
        with pytest.raises(DataError, match="real targets"):
            Gaussian().targets_of(Gaussian().predictive(moments(4, 1)), torch.tensor([0, 1, 2, 3]))


def moments(*shape: int) -> Moments:
    """Outputs of a shape with a covariance between the outputs of each position."""
    return Moments.from_factor(
        torch.randn(shape, dtype=torch.float64), 0.7 * torch.randn(*shape, 2, dtype=torch.float64)
    )


@pytest.mark.parametrize("likelihood", [NegativeBinomial(0.5), Poisson()])
@pytest.mark.parametrize("outputs", [1, 2])
def test_held_out_losses_of_counts_do_not_depend_on_the_batches(likelihood: Likelihood, outputs: int) -> None:
    known = Moments(moments(6, outputs).mean, moments(6, outputs).covariance)
    y = torch.arange(6 * outputs).double().view(6, outputs)
    whole = held_out_losses(likelihood, known, y, "probit")
    parts = [
        held_out_losses(likelihood, Moments(known.mean[k : k + 2], known.covariance[k : k + 2]), y[k : k + 2], "probit")
        for k in range(0, 6, 2)
    ]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-12, atol=0.0)
