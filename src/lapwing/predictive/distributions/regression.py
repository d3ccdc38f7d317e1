"""Real numbers at each position."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing import metrics
from lapwing.ground import probes
from lapwing.ground.errors import ShapeError, check_fraction
from lapwing.ground.precision import wide
from lapwing.metrics.score_table import Scores
from lapwing.moments.marginals import quantile_of_normal
from lapwing.moments.wide import Outputs
from lapwing.predictive.distributions.base import Predictive, check_one_an_output, plus_diagonal


@final
@dataclass(frozen=True, eq=False, repr=False)
class Regression(Predictive):
    """Real targets: uncertain outputs plus Gaussian observation noise.

    Args:
        outputs: What is known of the outputs; ``outputs.variance`` is without noise.
        noise: Variance of the observation noise, ``[c]`` or ``[n, *event, c]``.

    Example:
        >>> from lapwing.moments import Moments
        >>> p = Regression(Moments(torch.zeros(1, 1), 9 * torch.ones(1, 1, 1)), noise=torch.tensor([16.0]))
        >>> p.std, p.outputs.std
        (tensor([[5.]]), tensor([[3.]]))
        >>> print(p.scores(torch.zeros(1, 1)))
        nll              2.5284  nats an example, token or pixel, lower is better
        rmse             0.0000  unit of the targets, lower is better
        crps             1.1685  unit of the targets, lower is better
        picp             1.0000  share of targets inside the 95 % intervals, best at 0.95
        interval_score  19.5996  unit of the targets, of the 95 % intervals, lower is better
        width           19.5996  unit of the targets, mean width of the 95 % intervals
    """

    outputs: Outputs
    noise: Tensor

    @classmethod
    def heteroscedastic(cls, outputs: Outputs) -> Regression:
        """Targets whose outputs are all means, then all log variances, matched by mean and variance."""
        size = means_and_log_variances(outputs.mean)[0].shape[-1]
        log_variances = outputs.select(slice(size, None))
        return cls(outputs.select(slice(size)), log_variances.expected_exp("noise variances"))

    @property
    def latent(self) -> Outputs:
        """See ``Predictive.latent``: the outputs."""
        return self.outputs

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
    def uncertainty(self) -> Float[Tensor, "*batch"]:
        """Summed standard deviations, ``[n, *event]``."""
        return self.std.sum(-1)

    @property
    def covariance(self) -> Tensor:
        """Covariance with noise: ``[n, *event, c, c]``, or of the whole batch for joint outputs."""
        return plus_diagonal(self.outputs.covariance, self.noise.expand(self.mean.shape))

    def log_prob(
        self, targets: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, " m"]:
        """See ``Predictive.log_prob``; in float64.

        Raises:
            ShapeError: If targets have another shape than the outputs.
        """
        check_one_an_output(targets, self.mean)
        variance = wide(self.variance)
        squares = (wide(targets) - wide(self.mean)).square()
        return -0.5 * (squares / variance + (2 * math.pi * variance).log()).sum(-1).flatten()

    def score_terms(
        self, targets: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """See ``Predictive.score_terms``."""
        low, high = self.interval()
        return {
            "log_prob": self.log_prob(targets),
            "targets": targets,
            "mean": self.mean,
            "std": self.std,
            "low": low,
            "high": high,
        }

    @classmethod
    def scores_of(cls, terms: Mapping[str, Tensor]) -> Scores:
        """NLL, RMSE, CRPS, and of the 95 % intervals coverage, score and width."""
        low = terms["low"]
        high = terms["high"]
        return Scores(
            {
                "nll": float(-wide(terms["log_prob"]).mean()),
                "rmse": metrics.rmse(terms["mean"], terms["targets"]),
                "crps": metrics.crps(terms["mean"], terms["std"], terms["targets"]),
                "picp": metrics.picp(low, high, terms["targets"]),
                "interval_score": metrics.interval_score(low, high, terms["targets"]),
                "width": metrics.interval_width(low, high),
            }
        )

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


def means_and_log_variances(
    outputs: Float[Tensor, "*batch two_c"],
) -> tuple[Float[Tensor, "*batch c"], Float[Tensor, "*batch c"]]:
    """Means and log variances, the two halves of the outputs of a ``HeteroscedasticGaussian``.

    Raises:
        ShapeError: If the number of outputs is odd.
    """
    if outputs.shape[-1] % 2:
        raise ShapeError(
            "an even number of outputs, all means and then all log variances",
            f"outputs of shape {list(outputs.shape)}",
            "a network with two outputs a target, or Gaussian() for noise of one size",
        )
    means, log_variances = outputs.chunk(2, -1)
    return means, log_variances
