"""Links: probit, Laplace bridge and Monte Carlo against definitions, quadrature and laplace-torch."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError
from lapwing.predictive import Moments, concentration, laplace_bridge, monte_carlo, pairwise, probit, probit_binary

LINKS: list[Any] = [probit, laplace_bridge, lambda m: laplace_bridge(m, normalise=True), pairwise]


def random_moments(n: int = 5, c: int = 4, scale: float = 1.0) -> Moments:
    factor = scale * torch.randn(n, c, c + 1, dtype=torch.float64)
    return Moments(torch.randn(n, c, dtype=torch.float64), factor @ factor.mT)


def naive_bridge(mean: Tensor, covariance: Tensor, normalise: bool) -> Tensor:
    """One position, the formulas of ``concentration`` letter by letter."""
    c, one = len(mean), torch.ones_like(mean)
    total = one @ covariance @ one
    mu = mean - covariance @ one * (one @ mean) / total
    sigma = covariance - torch.outer(covariance @ one, one @ covariance) / total
    variance = sigma.diagonal()
    if normalise:
        v = variance.mean() * math.sqrt(2 / c)
        mu, variance = mu / v.sqrt(), variance / v
    return torch.stack([(1 - 2 / c + mu[k].exp() / c**2 * (-mu).exp().sum()) / variance[k] for k in range(c)])


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("c", [2, 3, 10])
def test_bridge_is_its_formula(c: int, normalise: bool) -> None:
    moments = random_moments(c=c)
    expected = torch.stack(
        [naive_bridge(m, s, normalise) for m, s in zip(moments.mean, moments.covariance, strict=True)]
    )
    torch.testing.assert_close(concentration(moments, normalise=normalise), expected)
    torch.testing.assert_close(laplace_bridge(moments, normalise=normalise), expected / expected.sum(-1, keepdim=True))


@pytest.mark.parametrize("name", ["probit", "bridge", "bridge_norm"])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.no_cover
def test_links_are_those_of_laplace_torch(name: str) -> None:
    peer = pytest.importorskip("laplace.baselaplace")
    moments = random_moments(n=8, c=5)
    given = SimpleNamespace(
        _glm_predictive_distribution=lambda x, joint: (moments.mean.clone(), moments.covariance.clone()),
        _device="cpu",
        _dtype=torch.float64,
    )
    expected = peer.ParametricLaplace._glm_forward_call(given, None, "classification", link_approx=name)
    ours = {
        "probit": probit,
        "bridge": laplace_bridge,
        "bridge_norm": lambda m: laplace_bridge(m, normalise=True),
    }
    torch.testing.assert_close(ours[name](moments), expected)


def test_pairwise_is_its_formula() -> None:
    moments = random_moments(n=6, c=4, scale=2.0)
    expected = torch.empty_like(moments.mean)
    for n, (m, s) in enumerate(zip(moments.mean, moments.covariance, strict=True)):
        for c in range(4):
            gaps = [
                (m[c] - m[j]) / (1 + math.pi / 8 * (s[c, c] + s[j, j] - 2 * s[c, j])).sqrt() for j in range(4) if j != c
            ]
            expected[n, c] = 1 / (1 + torch.stack(gaps).neg().exp().sum())
    expected /= expected.sum(-1, keepdim=True)
    torch.testing.assert_close(pairwise(moments), expected)
    torch.testing.assert_close(pairwise(moments, max_bytes=1), expected)
    event = Moments(moments.mean.view(2, 3, 4), moments.covariance.view(2, 3, 4, 4))
    torch.testing.assert_close(pairwise(event), expected.view(2, 3, 4))


def test_pairwise_of_two_classes_is_the_probit_of_their_difference() -> None:
    moments = random_moments(c=2, scale=3.0)
    ends = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    spread = torch.einsum("nij,i,j->n", moments.covariance, ends, ends)
    difference = Moments((moments.mean @ ends)[:, None], spread[:, None, None])
    torch.testing.assert_close(pairwise(moments)[:, 1:], probit_binary(difference))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pairwise_does_not_see_what_all_logits_share(dtype: torch.dtype) -> None:
    moments = random_moments(c=5, scale=0.5)
    rows = torch.randn(5, 5, 1, dtype=torch.float64)
    shifted = Moments((moments.mean + 3).to(dtype), (moments.covariance + rows + rows.mT + 529.0).to(dtype))
    assert float((probit(shifted) - probit(moments)).abs().max()) > 0.05  # which the probit of each logit does
    tolerance = 1e-4 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(pairwise(shifted).double(), pairwise(moments), rtol=0, atol=tolerance)
    assert pairwise(shifted).dtype == dtype


def test_pairwise_is_differentiable_and_refuses_what_is_no_variance() -> None:
    mean, factor = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
    inputs = (mean.requires_grad_(), factor.requires_grad_())
    assert torch.autograd.gradcheck(lambda m, f: pairwise(Moments(m, f @ f.mT)), inputs)
    with pytest.raises(NumericalError, match="smallest variance"):
        pairwise(Moments(torch.zeros(1, 3), -torch.eye(3).expand(1, 3, 3)))


def test_bridge_maps_a_dirichlet_back_to_itself() -> None:
    # The bridge's inverse: log-Dirichlet in the softmax basis has μ_k = log α_k - mean log α and
    # Σ_kl = δ_kl/α_k - (1/α_k + 1/α_l)/c + Σ_m 1/(c² α_m).
    alpha = torch.tensor([[2.0, 5.0, 0.5, 1.0], [30.0, 1.0, 4.0, 9.0]], dtype=torch.float64)
    c = alpha.shape[1]
    mean = alpha.log() - alpha.log().mean(-1, keepdim=True)
    inverse = 1 / alpha
    covariance = (
        torch.diag_embed(inverse)
        - (inverse[:, :, None] + inverse[:, None, :]) / c
        + inverse.sum(-1)[:, None, None] / c**2
    )
    moments = Moments(mean, covariance)
    torch.testing.assert_close(concentration(moments), alpha)
    torch.testing.assert_close(laplace_bridge(moments), alpha / alpha.sum(-1, keepdim=True))


def test_the_bridge_does_not_see_a_certain_shift_of_all_logits() -> None:
    moments = random_moments()
    zero_sum = moments.covariance - moments.covariance.mean(-1, keepdim=True)
    zero_sum = zero_sum - zero_sum.mean(-2, keepdim=True)
    for link in LINKS[1:]:
        shifted = link(Moments(moments.mean + 5.0, zero_sum))
        torch.testing.assert_close(shifted, link(Moments(moments.mean, zero_sum)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("variance", [0.0, 1e-12, 1.0, 1e8])
def test_links_are_probabilities_for_extreme_logits(dtype: torch.dtype, variance: float) -> None:
    mean = torch.tensor([[1e4, 0.0, -1e4], [1e4, 1e4, 1e4], [0.0, 0.0, 0.0]], dtype=dtype)
    moments = Moments(mean, variance * torch.eye(3, dtype=dtype).expand(3, 3, 3))
    for link in LINKS:
        probs = link(moments)
        assert probs.dtype == dtype and bool(torch.isfinite(probs).all())
        torch.testing.assert_close(probs.sum(-1), torch.ones(3, dtype=dtype))
        torch.testing.assert_close(probs[1:], torch.full((2, 3), 1 / 3, dtype=dtype))
        assert float(probs[0, 0]) >= float(probs[0, 1]) >= float(probs[0, 2])


@pytest.mark.parametrize("link", LINKS)
def test_certain_logits_give_softmax(link: Any) -> None:
    mean = torch.randn(4, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(link(Moments.certain(mean)), torch.softmax(mean, -1))


def test_variance_that_softmax_does_not_see_gives_softmax_by_the_bridge() -> None:
    mean = torch.randn(4, 3, dtype=torch.float64)
    common = Moments(mean, torch.full((4, 3, 3), 7.0, dtype=torch.float64))
    torch.testing.assert_close(laplace_bridge(common), torch.softmax(mean, -1))
    assert bool(torch.isinf(concentration(common)).all())


def test_one_certain_class_among_uncertain_ones_stays_finite() -> None:
    covariance = torch.diag(torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)).expand(1, 3, 3)
    probs = laplace_bridge(Moments(torch.zeros(1, 3, dtype=torch.float64), covariance))
    assert bool(torch.isfinite(probs).all()) and float(probs.sum()) == pytest.approx(1.0)


def test_the_bridge_needs_two_classes() -> None:
    with pytest.raises(ShapeError, match=r"at least two classes.*Got logits of shape \[2, 1\]"):
        laplace_bridge(Moments.certain(torch.zeros(2, 1)))


def test_binary_probit_is_close_to_the_integral() -> None:
    mean = torch.linspace(-4, 4, 9, dtype=torch.float64).unsqueeze(-1)
    nodes, weights = (torch.tensor(v) for v in np.polynomial.hermite_e.hermegauss(60))
    for variance in (0.0, 1.0, 9.0):
        moments = Moments(mean, torch.full((9, 1, 1), variance, dtype=torch.float64))
        exact = torch.sigmoid(mean + variance**0.5 * nodes) @ weights / math.sqrt(2 * math.pi)
        torch.testing.assert_close(probit_binary(moments).squeeze(-1), exact, atol=0.02, rtol=0)


def test_uncertainty_lowers_the_confidence_of_probit() -> None:
    mean = torch.tensor([[3.0, 0.0, 0.0]], dtype=torch.float64)
    eye = torch.eye(3, dtype=torch.float64).expand(1, 3, 3)
    confidences = [float(probit(Moments(mean, v * eye)).max()) for v in (0.0, 1.0, 10.0, 1e6)]
    assert confidences == sorted(confidences, reverse=True)
    assert confidences[-1] == pytest.approx(1 / 3, abs=1e-2)


@pytest.mark.parametrize("max_bytes", [1, 20_000, 2**28])
def test_monte_carlo_agrees_with_many_draws_within_its_standard_error(max_bytes: int) -> None:
    moments = random_moments(n=6, c=3)
    exact = torch.softmax(moments.sample(200_000), -1).mean(0)
    probs, stderr = monte_carlo(moments, 3000, max_bytes=max_bytes, generator=torch.Generator().manual_seed(5))
    assert probs.shape == stderr.shape == (6, 3)
    assert bool((stderr > 0).all()) and float(stderr.max()) < 0.5 / 3000**0.5
    assert bool(((probs - exact).abs() <= 5 * stderr + 0.004).all())
    torch.testing.assert_close(probs.sum(-1), torch.ones(6, dtype=torch.float64))


def test_monte_carlo_standard_error_is_that_of_its_draws() -> None:
    moments = random_moments()
    values = torch.softmax(moments.factored().sample(64, generator=torch.Generator().manual_seed(1)), -1)
    probs, stderr = monte_carlo(moments, 64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(probs, values.mean(0))
    torch.testing.assert_close(stderr, values.std(0) / 8)


def test_monte_carlo_draws_no_more_at_once_than_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    plain = Moments.sample

    def counted(self: Moments, k: int, **options: Any) -> Tensor:
        rounds.append(k)
        return plain(self, k, **options)

    monkeypatch.setattr(Moments, "sample", counted)
    moments = random_moments(n=10, c=4)
    monte_carlo(moments, 100, max_bytes=6 * 8 * 10 * 4 * 30)
    assert rounds == [30, 30, 30, 10]


def test_monte_carlo_follows_the_dtype_and_repeats() -> None:
    moments = Moments(torch.zeros(2, 3), torch.eye(3).expand(2, 3, 3))
    first, again = (monte_carlo(moments, 16, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first[0], again[0]) and first[0].dtype == torch.float32
    with pytest.raises(ConfigError, match="samples of at least 2"):
        monte_carlo(moments, 1)
