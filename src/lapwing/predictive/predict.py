"""The one entry: from a likelihood and what is known of the outputs to a predictive distribution."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, get_args

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
from lapwing.likelihoods.gaussian import split
from lapwing.predictive.distributions import Classification, Counts, MultiLabel, Regression
from lapwing.predictive.joint import Draws, JointMoments
from lapwing.predictive.links import SAMPLES, laplace_bridge, monte_carlo, pairwise, probit, probit_binary
from lapwing.predictive.moments import Moments
from lapwing.predictive.quadrature import MAX_BYTES, expected_sigmoid, quasi_monte_carlo

Link: TypeAlias = Literal["probit", "pairwise", "bridge", "qmc", "mc"]
"""How the logits' uncertainty is averaged out: the probit approximation logit by logit or pair by pair, the Laplace
bridge, fixed quasi-random draws (for a single logit and two classes the integral itself), or Monte Carlo."""

Outputs: TypeAlias = Moments | JointMoments | Draws
"""What is known of a network's outputs."""

Predictive: TypeAlias = Classification | MultiLabel | Regression | Counts
"""A distribution of targets."""


def predictive(
    likelihood: Likelihood,
    outputs: Outputs,
    link: Link = "qmc",
    *,
    temperature: float = 1.0,
    samples: int = SAMPLES,
    max_bytes: int = MAX_BYTES,
    generator: torch.Generator | None = None,
) -> Predictive:
    """The distribution of targets p(y) = ∫ p(y | f) p(f) df at each position.

    Gaussian and Poisson targets have closed forms and take no link; a Gaussian whose noise depends on the
    input is matched by its mean and variance. Draws are averaged as they are, whatever the link.

    Args:
        likelihood: p(y | f).
        outputs: What is known of f, in canonical form ``[n, *event, c]``. Joint outputs give the same
            probabilities and coherent samples.
        link: For classes and labels, how the uncertainty is averaged out.
        temperature: Divides the logits, mean and standard deviation, before the link.
        samples: Draws for ``link="mc"``.
        max_bytes: Memory for draws, of ``"qmc"`` too, and for the pairs of ``"pairwise"``.
        generator: Source of randomness for ``"mc"``; ``None`` draws from PyTorch's global one.

    Returns:
        ``Classification`` for Categorical, ``MultiLabel`` for Bernoulli, ``Regression`` for the Gaussians,
        ``Counts`` for Poisson.

    Raises:
        ConfigError: If the link is not one of the five, or the temperature not positive.
        UnsupportedError: If the link, or a temperature, does not exist for this likelihood.
        NumericalError: If the covariance is not positive semi-definite, or expected rates overflow.

    Example:
        >>> moments = Moments(torch.tensor([[2.0, 0.0]]), 4 * torch.eye(2).expand(1, 2, 2))
        >>> predictive(Categorical(), moments).probs
        tensor([[0.7261, 0.2739]])
    """
    check_link(link, temperature)
    if temperature != 1 and not likelihood.labels:
        raise UnsupportedError("classes or labels for a temperature", f"{likelihood}", "temperature 1.0")
    match likelihood:
        case Categorical() | Bernoulli():
            scaled = outputs if temperature == 1 else outputs.scaled(1 / temperature)
            return _labels(likelihood, scaled, link, samples, max_bytes, generator)
        case Gaussian():
            return Regression(outputs, 1 / likelihood.precisions(outputs.mean))
        case HeteroscedasticGaussian():
            return _heteroscedastic(outputs)
        case Poisson():
            return _counts(outputs)
        case _:
            raise UnsupportedError(
                "a likelihood of lapwing.likelihoods",
                type(likelihood).__name__,
                "Categorical, Bernoulli, Gaussian, HeteroscedasticGaussian or Poisson",
            )


def check_link(link: str, temperature: float = 1.0) -> None:
    """Refuses what is no link or no temperature.

    Raises:
        ConfigError: If the link is not one of the five, or the temperature not positive.
    """
    if link not in get_args(Link):
        raise ConfigError(f"a link that is one of {', '.join(get_args(Link))}", f"{link!r}", "'qmc'")
    if not 0 < temperature < math.inf:
        raise ConfigError("a temperature > 0", f"{temperature}", "1.0, which changes nothing")


def _labels(
    likelihood: Categorical | Bernoulli,
    outputs: Outputs,
    link: Link,
    samples: int,
    max_bytes: int,
    generator: torch.Generator | None,
) -> Classification | MultiLabel:
    many = isinstance(likelihood, Bernoulli)
    kind = MultiLabel if many else Classification
    if isinstance(outputs, Draws):
        probs = likelihood.mean(outputs.values)
        return kind(outputs, probs.mean(0), _stderr(probs))
    moments = outputs.marginal()
    if link == "mc":
        return kind(
            outputs,
            *monte_carlo(moments, samples, link=likelihood.mean, max_bytes=max_bytes, generator=generator),
        )
    if many:
        return kind(outputs, _yes(moments, link, max_bytes))
    match link:
        case "bridge":
            return kind(outputs, laplace_bridge(moments))
        case "pairwise":
            return kind(outputs, pairwise(moments, max_bytes=max_bytes))
        case "qmc":
            return kind(outputs, quasi_monte_carlo(moments, max_bytes=max_bytes))
        case _:
            return kind(outputs, probit(moments))


def _yes(moments: Moments, link: Link, max_bytes: int) -> Tensor:
    """Probability of yes for each logit; a single logit has no pairs."""
    if link == "bridge":
        raise UnsupportedError(
            "link 'qmc', 'probit', 'pairwise' or 'mc' for Bernoulli",
            "link 'bridge', which for a single logit is the sigmoid of its mean",
            "'qmc', which for a single logit is exact",
        )
    if link == "qmc":
        return expected_sigmoid(moments.mean, moments.variance, max_bytes=max_bytes)
    return probit_binary(moments)


def _heteroscedastic(outputs: Outputs) -> Regression:
    size = split(outputs.mean)[0].shape[-1]
    log_variances = outputs.select(slice(size, None))
    if isinstance(log_variances, Draws):
        noise = _finite(log_variances.values.exp().mean(0), "noise variances exp f", log_variances.values)
    else:
        noise = _expected_exp(log_variances, "noise variances")
    return Regression(outputs.select(slice(size)), noise)


def _counts(outputs: Outputs) -> Counts:
    if isinstance(outputs, Draws):
        rates = Draws(outputs.values.exp())
        mean = _finite(rates.mean, "rates exp f", outputs.values)
        return Counts(outputs, mean, _finite(rates.covariance, "variances of rates exp f", 2 * outputs.values))
    mean = _expected_exp(outputs, "rates")
    if isinstance(outputs, JointMoments):
        products = torch.outer(mean.reshape(-1), mean.reshape(-1)).reshape(outputs.covariance.shape)
    else:
        products = mean[..., :, None] * mean[..., None, :]
    covariance = _finite(products * torch.expm1(outputs.covariance), "variances of rates exp f", 2 * outputs.mean)
    return Counts(outputs, mean, covariance)


def _expected_exp(moments: Moments | JointMoments, what: str) -> Tensor:
    """E e^f = e^(m + v/2) for Gaussian f."""
    exponents = moments.mean + 0.5 * moments.variance
    return _finite(exponents.exp(), f"expected {what} exp(mean + variance / 2)", exponents)


def _finite(values: Tensor, what: str, exponents: Tensor) -> Tensor:
    """The values, if none of them overflowed."""
    if not bool(torch.isfinite(values).all()):
        raise NumericalError(
            f"finite {what}",
            f"an exponent of {float(exponents.max()):g}",
            "a larger prior precision, or float64",
        )
    return values


def _stderr(values: Tensor) -> Tensor | None:
    s = values.shape[0]
    return values.std(0) / s**0.5 if s > 1 else None
