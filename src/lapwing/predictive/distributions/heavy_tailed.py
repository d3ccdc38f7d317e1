"""Real numbers at each position, with noise whose tails are heavier than a Gaussian's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing import metrics
from lapwing.ground import probes
from lapwing.ground.errors import DataError, check_fraction
from lapwing.ground.precision import wide
from lapwing.metrics.score_table import Scores
from lapwing.moments.marginals import quantile_of_normal
from lapwing.moments.wide import Outputs
from lapwing.predictive.distributions.base import Predictive, check_one_an_output, plus_diagonal
from lapwing.predictive.scale_mixtures import log_density, share_below

NARROW = 1e-7
"""Width of the bracket of a quantile, relative to its distance from the mean, that one step of Newton's squares."""

HALVINGS = 2_000
"""Most halvings of a bracket: float64 has no more powers of two."""

LARGEST = 1e150
"""Largest size of a target, whose square is a number still."""

SLACK = 1e-6
"""Part by which a bracket is wider than it must be, for quantiles of t that are not exact."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class HeavyTailedRegression(Predictive):
    """Real targets: uncertain outputs plus Student-t noise, y = f + σ t with ν degrees of freedom.

    Given its precision g / σ² the noise is Gaussian, with g from a gamma distribution of mean 1 and shape ν/2:
    densities and distribution functions are integrals over g, logarithms of densities right to ten digits,
    probabilities to ten after the point.

    Args:
        outputs: What is known of the outputs; ``outputs.variance`` is without noise.
        df: Degrees of freedom ν. Up to 2 the variance of the targets is infinite; up to 1 they have no mean, and
            ``mean`` is their median.
        scale: σ, in the units of y.

    Example:
        >>> from lapwing.moments import Moments
        >>> p = HeavyTailedRegression(Moments(torch.zeros(1, 1), 9 * torch.ones(1, 1, 1)), df=4.0, scale=2.0)
        >>> p.variance, p.outputs.std, p.interval(0.95)
        (tensor([[17.]]), tensor([[3.]]), (tensor([[-8.0206]]), tensor([[8.0206]])))
    """

    outputs: Outputs
    df: float
    scale: float

    @property
    def latent(self) -> Outputs:
        """See ``Predictive.latent``: the outputs."""
        return self.outputs

    @property
    def mean(self) -> Float[Tensor, "*batch c"]:
        """Expected target, ``[n, *event, c]``."""
        return self.outputs.mean

    @property
    def noise(self) -> float:
        """Variance of the noise, σ² ν / (ν - 2), or infinite up to two degrees of freedom."""
        return self.scale**2 * self.df / (self.df - 2) if self.df > 2 else math.inf

    @property
    def variance(self) -> Float[Tensor, "*batch c"]:
        """Variance of the target, noise included, ``[n, *event, c]``; infinite up to two degrees of freedom."""
        return self.outputs.variance + self.noise

    @property
    def std(self) -> Float[Tensor, "*batch c"]:
        """Standard deviation of the target, noise included, ``[n, *event, c]``; see ``variance``."""
        return self.variance.sqrt()

    @property
    def uncertainty(self) -> Float[Tensor, "*batch"]:
        """Summed roots of the output's variance plus σ², finite for every ν, ``[n, *event]``."""
        return (self.outputs.variance + self.scale**2).sqrt().sum(-1)

    @property
    def covariance(self) -> Tensor:
        """Covariance with noise: ``[n, *event, c, c]``, or of the whole batch for joint outputs; see ``variance``."""
        return plus_diagonal(self.outputs.covariance, torch.full_like(self.mean, self.noise))

    def log_prob(
        self, targets: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, " m"]:
        """See ``Predictive.log_prob``; in float64, each output by itself.

        Raises:
            DataError: If targets are not finite, or beyond 1e150.
            ShapeError: If they have another shape than the outputs.
        """
        check_one_an_output(targets, self.mean)
        wrong = ~(wide(targets).abs() <= LARGEST)
        if bool(wrong.any()):
            got = f"{int(wrong.sum())} others of {wrong.numel()}"
            raise DataError(f"finite targets up to {LARGEST:g}", got, "the predictions of rows that have a target")
        logs = self._log_density(wide(targets).flatten())
        return logs.view(targets.shape).sum(-1).flatten()

    def cdf(self, targets: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """P(y' ≤ y) of each target by itself, float64, ``[n, *event, c]``.

        Raises:
            ShapeError: If they have another shape than the outputs.
        """
        check_one_an_output(targets, self.mean)
        return self._share_below(wide(targets).flatten()).view(targets.shape)

    def score_terms(
        self, targets: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """See ``Predictive.score_terms``."""
        low, high = self.interval()
        return {"log_prob": self.log_prob(targets), "targets": targets, "mean": self.mean, "low": low, "high": high}

    @classmethod
    def scores_of(cls, terms: Mapping[str, Tensor]) -> Scores:
        """NLL, RMSE, and of the 95 % intervals coverage, score and width."""
        low = terms["low"]
        high = terms["high"]
        return Scores(
            {
                "nll": float(-wide(terms["log_prob"]).mean()),
                "rmse": metrics.rmse(terms["mean"], terms["targets"]),
                "picp": metrics.picp(low, high, terms["targets"]),
                "interval_score": metrics.interval_score(low, high, terms["targets"]),
                "width": metrics.interval_width(low, high),
            }
        )

    def interval(
        self, level: float = 0.95, *, noise: bool = True
    ) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch c"]]:
        """Central interval that holds the target with the given probability, by inversion of ``cdf``.

        Args:
            level: Probability, between 0 and 1.
            noise: Whether to include observation noise; without it the interval is the noiseless output's.

        Returns:
            Lower and upper ends, ``[n, *event, c]`` each.

        Raises:
            ConfigError: If ``level`` is not between 0 and 1.

        Cost:
            Some thirty times that of ``cdf``.
        """
        check_fraction("level", level, "level=0.95")
        lower_tail = 0.5 * (1 - level)
        upper_tail = 0.5 * (1 + level)
        if not noise:
            return self.outputs.quantile(lower_tail), self.outputs.quantile(upper_tail)
        return self._quantile(lower_tail), self._quantile(upper_tail)

    def sample(
        self, k: int, *, noise: bool = True, generator: torch.Generator | None = None
    ) -> Float[Tensor, "k *batch c"]:
        """Drawn targets ``[k, n, *event, c]``, or outputs without noise; see ``Regression.sample``."""
        values = self.outputs.sample(k, generator=generator)
        if not noise:
            return values
        return values + self.scale * drawn_student_t(values.shape, self.df, like=values, generator=generator)

    def _share_below(self, targets: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
        means, variances = self.outputs.components()
        away = targets - means
        return share_below(away.flatten(), variances.flatten(), self.df, self.scale).view(away.shape).mean(0)

    def _log_density(self, targets: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
        means, variances = self.outputs.components()
        away = targets - means
        each = log_density(away.flatten(), variances.flatten(), self.df, self.scale).view(away.shape)
        return torch.logsumexp(each, 0) - math.log(len(each))

    def _quantile(self, probability: float) -> Float[Tensor, "*batch c"]:
        """Where the distribution function has this value.

        By bisection, and then one step of Newton's method, which squares what is left of the error and has the
        derivative of the quantile in the outputs.
        """
        with torch.no_grad():
            low, high = self._bracket(probability)
            centre = wide(self.mean).flatten()
            for _ in range(HALVINGS):
                middle = low + 0.5 * (high - low)
                if bool((high - low <= NARROW * ((middle - centre).abs() + self.scale)).all()):
                    break
                above = self._share_below(middle) >= probability
                high = torch.where(above, middle, high)
                low = torch.where(above, low, middle)
            middle = low + 0.5 * (high - low)
            density = self._log_density(middle).exp()
        found = middle - (self._share_below(middle) - probability) / density
        return found.view(self.mean.shape).to(self.mean)

    def _bracket(self, probability: float) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Two numbers between which the quantile is.

        A Gaussian number plus t noise is beyond a distance no less likely than either of them alone, and no more likely
        than either of them beyond half of it. The quantile of a mixture is between those of its parts.
        """
        from scipy.special import stdtrit  # a tenth of a second to import

        means, variances = self.outputs.components()
        tail = min(probability, 1 - probability)
        deviations = variances.sqrt()

        def farther(some: float) -> Float[Tensor, "k m"]:
            """The larger of the distances beyond which each of the two is with this probability."""
            of_noise = -self.scale * float(stdtrit(self.df, some))
            return (-quantile_of_normal(some) * deviations).clamp_min(of_noise)

        nearest = farther(tail) * (1 - SLACK)
        farthest = 2 * farther(0.5 * tail) * (1 + SLACK)
        if probability < 0.5:
            nearest, farthest = -farthest, -nearest
        return (means + nearest).amin(0), (means + farthest).amax(0)


def drawn_student_t(
    shape: Sequence[int], df: float, *, like: Tensor, generator: torch.Generator | None
) -> Float[Tensor, "*batch c"]:
    """Student-t numbers of scale 1: normal ones over the root of gamma ones, of mean 1 and shape ν/2.

    Args:
        shape: Shape of the result.
        df: ν.
        like: Tensor whose device and dtype they take.
        generator: Source of randomness; ``None`` draws from PyTorch's global one.
    """
    normal = probes.gaussian(shape, like=like, generator=generator)
    precisions = probes.gamma(shape, 0.5 * df, like=like, generator=generator)
    return normal * precisions.clamp_min(torch.finfo(like.dtype).tiny).rsqrt()
