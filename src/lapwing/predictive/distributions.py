"""Predictive distributions of targets: one of c classes, several labels at once, real numbers, counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import NumericalError, check_fraction
from lapwing.ground.results import Shown
from lapwing.likelihoods.gaussian import split
from lapwing.predictive.outputs import Draws, JointMoments, Moments
from lapwing.predictive.quantiles import count_quantile
from lapwing.predictive.wide import BasisMoments, Outputs, WideMoments


@final
@dataclass(frozen=True, eq=False, repr=False)
class Classification(Shown):
    """Probabilities of c classes at each position.

    Args:
        logits: What is known of the logits.
        probs: Predictive probabilities ``[n, *event, c]``, the uncertainty of the logits averaged out; in float32 at
            least, since those of half precision do not add up to 1.
        stderr: Standard error of ``probs`` where they came from Monte Carlo, same shape.

    Example:
        >>> p = Classification(Moments.certain(torch.zeros(1, 2)), torch.tensor([[0.25, 0.75]]))
        >>> p.labels, p.confidence, p.entropy
        (tensor([1]), tensor([0.7500]), tensor([0.5623]))
    """

    logits: Outputs
    probs: Float[Tensor, "*batch c"]
    stderr: Float[Tensor, "*batch c"] | None = None

    @property
    def labels(self) -> Int[Tensor, "*batch"]:
        """Most probable class, ``[n, *event]``."""
        return self.probs.argmax(-1)

    @property
    def confidence(self) -> Float[Tensor, "*batch"]:
        """Probability of the most probable class, ``[n, *event]``."""
        return self.probs.amax(-1)

    @property
    def entropy(self) -> Float[Tensor, "*batch"]:
        """Entropy -Σ_k p_k log p_k in nats, ``[n, *event]``."""
        return -torch.xlogy(self.probs, self.probs).sum(-1)

    @property
    def covariance(self) -> Float[Tensor, "*batch c c"]:
        """Covariance diag(p) - p pᵀ of the one-hot label, ``[n, *event, c, c]``."""
        return torch.diag_embed(self.probs) - self.probs[..., :, None] * self.probs[..., None, :]

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """Probabilities softmax(f) of drawn logits f, ``[k, n, *event, c]``: answers that might have been.

        Args:
            k: Number of draws; coherent over the batch where ``logits`` are joint.
            generator: Source of randomness; ``None`` draws from PyTorch's global one. The same seed on another batch
                draws other functions.
        """
        logits = self.logits.sample(k, generator=generator)
        return torch.softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)


@final
@dataclass(frozen=True, eq=False, repr=False)
class MultiLabel(Shown):
    """Probabilities of c independent yes-or-no labels at each position.

    Args:
        logits: What is known of the logits.
        probs: Predictive probabilities of yes ``[n, *event, c]``.
        stderr: Standard error of ``probs`` where they came from Monte Carlo, same shape.

    Example:
        >>> MultiLabel(Moments.certain(torch.zeros(1, 2)), torch.tensor([[0.25, 0.75]])).labels
        tensor([[0, 1]])
    """

    logits: Outputs
    probs: Float[Tensor, "*batch c"]
    stderr: Float[Tensor, "*batch c"] | None = None

    @property
    def labels(self) -> Int[Tensor, "*batch c"]:
        """1 where yes is more probable than no, else 0, ``[n, *event, c]``."""
        return (self.probs > 0.5).long()

    @property
    def confidence(self) -> Float[Tensor, "*batch c"]:
        """Probability of the more probable answer, ``[n, *event, c]``."""
        return torch.maximum(self.probs, 1 - self.probs)

    @property
    def entropy(self) -> Float[Tensor, "*batch c"]:
        """Entropy of each label in nats, ``[n, *event, c]``."""
        return torch.special.entr(self.probs) + torch.special.entr(1 - self.probs)

    @property
    def variance(self) -> Float[Tensor, "*batch c"]:
        """Variance p (1 - p) of each label, ``[n, *event, c]``."""
        return self.probs * (1 - self.probs)

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """Probabilities σ(f) of drawn logits f, ``[k, n, *event, c]``; see ``Classification.sample``."""
        return torch.sigmoid(self.logits.sample(k, generator=generator))


@final
@dataclass(frozen=True, eq=False, repr=False)
class Regression(Shown):
    """Real targets: uncertain outputs plus Gaussian observation noise.

    Args:
        outputs: What is known of the outputs; ``outputs.variance`` is without noise.
        noise: Variance of the observation noise, ``[c]`` or ``[n, *event, c]``.

    Example:
        >>> p = Regression(Moments(torch.zeros(1, 1), 9 * torch.ones(1, 1, 1)), noise=torch.tensor([16.0]))
        >>> p.std, p.outputs.std
        (tensor([[5.]]), tensor([[3.]]))
    """

    outputs: Outputs
    noise: Tensor

    @classmethod
    def heteroscedastic(cls, outputs: Outputs) -> Regression:
        """Targets whose outputs are all means, then all log variances, matched by mean and variance."""
        size = split(outputs.mean)[0].shape[-1]
        log_variances = outputs.select(slice(size, None))
        if isinstance(log_variances, Draws):
            noise = _finite(log_variances.values.exp().mean(0), "noise variances exp f", log_variances.values)
        else:
            noise = _expected_exp(log_variances, "noise variances")
        return cls(outputs.select(slice(size)), noise)

    @property
    def mean(self) -> Float[Tensor, "*batch c"]:
        """Expected target, ``[n, *event, c]``."""
        return self.outputs.mean

    @property
    def variance(self) -> Float[Tensor, "*batch c"]:
        """Variance of the target, noise included, ``[n, *event, c]``."""
        return self.outputs.variance + self.noise

    @property
    def std(self) -> Float[Tensor, "*batch c"]:
        """Standard deviation of the target, noise included, ``[n, *event, c]``."""
        return self.variance.sqrt()

    @property
    def covariance(self) -> Tensor:
        """Covariance with noise: ``[n, *event, c, c]``, or of the whole batch for joint outputs."""
        return plus_diagonal(self.outputs.covariance, self.noise.expand(self.mean.shape))

    def interval(
        self, level: float = 0.95, *, noise: bool = True
    ) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch c"]]:
        """Central interval that holds the target with the given probability, mean ± z std.

        Args:
            level: Probability, between 0 and 1.
            noise: Whether to include observation noise; without it the interval is the noiseless output's.

        Returns:
            Lower and upper ends, ``[n, *event, c]`` each.

        Raises:
            ConfigError: If ``level`` is not between 0 and 1.
        """
        check_fraction("level", level, "level=0.95")
        half = quantile_of_normal(0.5 * (1 + level)) * (self.std if noise else self.outputs.std)
        return self.mean - half, self.mean + half

    def sample(
        self, k: int, *, noise: bool = True, generator: torch.Generator | None = None
    ) -> Float[Tensor, "k *batch c"]:
        """Drawn targets ``[k, n, *event, c]``, or outputs without noise.

        Args:
            k: Number of draws; coherent over the batch where ``outputs`` are joint.
            noise: Whether to add observation noise.
            generator: Source of randomness; ``None`` draws from PyTorch's global one. The same seed on another batch
                draws other functions.
        """
        values = self.outputs.sample(k, generator=generator)
        if not noise:
            return values
        return values + probes.gaussian(values.shape, like=values, generator=generator) * self.noise.sqrt()


@final
@dataclass(frozen=True, eq=False, repr=False)
class Counts(Shown):
    """Counts whose rate e^f is uncertain.

    Args:
        log_rates: What is known of the outputs f.
        rates: What is known of the rates e^f; of outputs too many for a covariance a position, of each rate by itself.

    Example:
        >>> Counts(Moments.certain(torch.zeros(1, 1)), Moments.certain(torch.ones(1, 1))).variance
        tensor([[1.]])
    """

    log_rates: Outputs
    rates: Outputs

    @classmethod
    def of(cls, outputs: Outputs) -> Counts:
        """The counts of uncertain log rates, in closed form."""
        if isinstance(outputs, Draws):
            rates = Draws(outputs.values.exp())
            _finite(rates.mean, "rates exp f", outputs.values)
            _finite(rates.covariance, "variances of rates exp f", 2 * outputs.values)
            return cls(outputs, rates)
        mean = _expected_exp(outputs, "rates")
        if isinstance(outputs, WideMoments):
            spread = mean.square() * torch.expm1(outputs.variance)
            spread = _finite(spread, "variances of rates exp f", 2 * (outputs.mean + outputs.variance))
            return cls(outputs, BasisMoments(mean, spread))
        matrix = _log_normal_covariance(mean.reshape(outputs.matrix.shape[:-1]), outputs.matrix)
        exponents = 2 * (outputs.mean + outputs.variance)
        covariance = _finite(matrix, "variances of rates exp f", exponents).reshape(outputs.covariance.shape)
        return cls(outputs, replace(outputs, mean=mean, covariance=covariance, factor=None))

    @property
    def mean(self) -> Float[Tensor, "*batch c"]:
        """Expected count, the expected rate E e^f, ``[n, *event, c]``."""
        return self.rates.mean

    @property
    def covariance(self) -> Tensor:
        """Covariance of the counts, diag(mean) + rate covariance (law of total variance).

        Raises:
            TooLargeError: If there are too many outputs for it.
        """
        if isinstance(self.log_rates, WideMoments):
            return plus_diagonal(_log_normal_covariance(self.mean, self.log_rates.covariance), self.mean)
        return plus_diagonal(self.rates.covariance, self.mean)

    @property
    def variance(self) -> Float[Tensor, "*batch c"]:
        """Variance of the counts, ``[n, *event, c]``."""
        return self.rates.variance + self.mean

    @property
    def std(self) -> Float[Tensor, "*batch c"]:
        """Standard deviation of the counts, ``[n, *event, c]``."""
        return self.variance.sqrt()

    def interval(
        self, level: float = 0.95, *, noise: bool = True
    ) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch c"]]:
        """Central interval that holds the count with the given probability, or a little more: counts are whole.

        Its ends are the smallest counts k with P(y ≤ k) of (1 - level)/2 and (1 + level)/2, at least.

        Args:
            level: Probability, between 0 and 1.
            noise: Whether of the counts; without it the interval is the rate's.

        Returns:
            Lower and upper ends, ``[n, *event, c]`` each.

        Raises:
            ConfigError: If ``level`` is not between 0 and 1.

        Cost:
            See ``count_quantile``.

        Example:
            >>> certain = Moments.certain(torch.zeros(1, 1))  # rates of 1
            >>> low, high = Counts.of(certain).interval(0.95)
            >>> low.item(), high.item()
            (0.0, 3.0)
        """
        check_fraction("level", level, "level=0.95")
        tails = (0.5 * (1 - level), 0.5 * (1 + level))
        if noise:
            low, high = (count_quantile(self.log_rates, self.mean, self.std, tail) for tail in tails)
            return low, high
        if isinstance(self.log_rates, Draws):
            low, high = (torch.quantile(self.log_rates.values, tail, dim=0).exp() for tail in tails)
            return low, high
        half = quantile_of_normal(tails[1]) * self.log_rates.std
        return (self.log_rates.mean - half).exp(), (self.log_rates.mean + half).exp()

    def sample(
        self, k: int, *, noise: bool = True, generator: torch.Generator | None = None
    ) -> Float[Tensor, "k *batch c"]:
        """Drawn counts ``[k, n, *event, c]``, or rates unless ``noise``; see ``Regression.sample``."""
        rates = self.log_rates.sample(k, generator=generator).exp()
        if not noise:
            return rates
        return probes.poisson(rates, generator=generator)


def _log_normal_covariance(
    mean: Float[Tensor, "*batch c"], covariance: Float[Tensor, "*batch c c"]
) -> Float[Tensor, "*batch c c"]:
    """That of numbers with these means whose logarithms have this covariance."""
    return mean[..., :, None] * mean[..., None, :] * torch.expm1(covariance)


def quantile_of_normal(probability: float) -> float:
    """That of a standard normal number."""
    return torch.special.ndtri(torch.tensor(probability, dtype=torch.float64, device="cpu")).item()


def plus_diagonal(covariance: Tensor, values: Float[Tensor, "*batch c"]) -> Tensor:
    """Covariance ``[*batch, c, c]``, or joint ``[*batch, c, *batch, c]``, plus a diagonal."""
    if covariance.ndim == 2 * values.ndim:
        return covariance + torch.diag(values.reshape(-1)).reshape(covariance.shape)
    return covariance + torch.diag_embed(values)


def _expected_exp(moments: Moments | JointMoments | WideMoments, what: str) -> Tensor:
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
