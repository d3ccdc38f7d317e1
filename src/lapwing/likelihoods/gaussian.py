"""Real targets with Gaussian noise: of one size, of one size an output, or of a size that depends on the input."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import product
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import DataError, NumericalError, ShapeError, precisions_of
from lapwing.ground.precision import wide
from lapwing.likelihoods.base import Likelihood
from lapwing.likelihoods.elementwise import Elementwise, check_logarithms
from lapwing.moments import Draws, JointMoments, Outputs
from lapwing.predictive.distributions import Regression
from lapwing.predictive.distributions.regression import means_and_log_variances
from lapwing.predictive.links import Link


@final
@dataclass(frozen=True, repr=False)
class Gaussian(Elementwise):
    """p(y | f) = N(y; f, 1/ρ), independently over the outputs; B = diag(ρ).

    Args:
        precision: Noise precision ρ = 1 / noise variance, in 1 / (units of y)²: one number, or one an output.
        shared: Whether tuning changes the precisions of all outputs by one factor. Otherwise each output has a noise of
            its own, whether one number was given for all or one for each.

    Raises:
        ConfigError: If a precision is not a positive finite number.

    Example:
        >>> likelihood = Gaussian(precision=4.0)
        >>> likelihood.noise_std, likelihood.hessian(torch.zeros(1, 1))
        (0.5, tensor([[[4.]]]))
    """

    hint: ClassVar[str] = "targets with one number an output"
    real: ClassVar[bool] = True
    precision: float | tuple[float, ...] = 1.0
    shared: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        values = precisions_of("noise", self.precision, "Gaussian(precision=1 / noise_std**2)").tolist()
        object.__setattr__(self, "precision", tuple(values) if isinstance(values, list) else values)

    @property
    def noise_std(self) -> float | tuple[float, ...]:
        """Noise standard deviation 1 / √ρ, in the units of y."""
        if isinstance(self.precision, tuple):
            return tuple(x**-0.5 for x in self.precision)
        return self.precision**-0.5

    @property
    def calibrates(self) -> bool:
        """See ``Likelihood.calibrates``."""
        return True

    @property
    def noise(self) -> float:
        """See ``Likelihood.noise``."""
        return self._each[0]

    @property
    def noise_precision(self) -> float | tuple[float, ...]:
        """See ``Likelihood.noise_precision``."""
        return self.precision

    def own_noises(self, outputs: int) -> Float[Tensor, " c"] | None:
        """See ``Likelihood.own_noises``."""
        if self.shared or outputs == 1:
            return None
        return self.precisions(torch.zeros(outputs, dtype=torch.float64))

    def with_own_noises(self, precisions: Float[Tensor, " c"]) -> Gaussian:
        """See ``Likelihood.with_own_noises``."""
        return replace(self, precision=tuple(precisions.tolist()))

    def scaled(self, factor: float) -> Gaussian:
        """See ``Likelihood.scaled``."""
        values = tuple(factor * x for x in self._each)
        return replace(self, precision=values if isinstance(self.precision, tuple) else values[0])

    def noise_over(self, other: Likelihood) -> float | None:
        """See ``Likelihood.noise_over``; one factor for all outputs."""
        if not isinstance(other, Gaussian) or replace(self, precision=other.precision, shared=other.shared) != other:
            return None
        now = self._each
        then = other._each
        pairs = zip(now, then, strict=True) if len(now) == len(then) else product(now, then)
        factors = [x / y for x, y in pairs]
        return factors[0] if max(factors) <= (1 + 1e-9) * min(factors) else None

    def precisions(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, " c"]:
        """Noise precision of each output, ``[c]``, with the dtype and device of ``outputs``.

        Raises:
            ShapeError: If there is one an output for another number of outputs.
        """
        size = outputs.shape[-1]
        values = self.precision if isinstance(self.precision, tuple) else (self.precision,) * size
        if len(values) != size:
            raise ShapeError(
                f"{len(values)} outputs, one a noise precision",
                f"outputs of shape {list(outputs.shape)}",
                "one precision for all outputs, Gaussian(precision=1.0)",
            )
        return torch.tensor(values, dtype=outputs.dtype, device=outputs.device)

    def _nll(self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch"]:
        """Σ_i ρ_i (y_i - f_i)² / 2 + log(2π / ρ_i) / 2 in nats."""
        precision = self.precisions(outputs)
        return 0.5 * (precision * (targets - outputs).square() + torch.log(2 * math.pi / precision)).sum(-1)

    def _score(
        self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]
    ) -> Float[Tensor, "*batch c"]:
        """Scaled residual ρ (y - f)."""
        return self.precisions(outputs) * (targets - outputs)

    def _diagonal(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """ρ."""
        return self.precisions(outputs).expand(outputs.shape)

    def misfits(self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]) -> Float[Tensor, " c"]:
        """See ``Likelihood.misfits``: Σ ρ_i (y_i - f_i)² of each output i."""
        squares = (wide(targets) - wide(outputs)).square()
        return self.weight * self.precisions(wide(outputs)) * squares.flatten(0, -2).sum(0)

    def draw(
        self, outputs: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*batch c"]:
        """Targets f + ε / √ρ with ε standard normal."""
        noise = probes.gaussian(outputs.shape, like=outputs, generator=generator)
        return outputs + noise * self.precisions(outputs).rsqrt()

    def mean(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """The outputs themselves."""
        return outputs

    def calibrated(self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]) -> Gaussian:
        """See ``Likelihood.calibrated``: the noise of the residuals, of each output unless they share one."""
        variances = wide(targets - outputs).square().flatten(0, -2).mean(0)
        if self.own_noises(len(variances)) is None:
            variances = variances.mean()
        if not bool((variances > 0).all()):
            raise DataError("residuals that are not all zero", "a perfect fit", "data the network was not trained on")
        precision = (1.0 / variances).tolist()
        return replace(self, precision=tuple(precision) if isinstance(precision, list) else precision)

    def exact_log_joint(self, outputs: JointMoments | Draws, targets: Float[Tensor, "*batch c"]) -> float:
        """See ``Likelihood.exact_log_joint``: N(y; m, K + 1/ρ).

        Raises:
            NumericalError: If the covariance is not positive semi-definite.
        """
        size = outputs.mean.numel()
        noise = (1 / self.precisions(wide(outputs.mean))).expand(outputs.mean.shape).reshape(-1)
        total = wide(outputs.covariance).reshape(size, size) + torch.diag(noise)
        factor, failed = torch.linalg.cholesky_ex(total)
        if int(failed):
            raise NumericalError(
                "a positive semi-definite joint covariance",
                f"one whose sum with the noise fails to factorise at row {int(failed)} of {size}",
                "float64, or a larger prior precision",
            )
        density = torch.distributions.MultivariateNormal(wide(outputs.mean).reshape(-1), scale_tril=factor)
        return float(density.log_prob(wide(targets).reshape(-1)))

    def _predictive(self, outputs: Outputs, link: Link, samples: int, generator: torch.Generator | None) -> Regression:
        return Regression(outputs, 1 / self.precisions(outputs.mean))

    @property
    def _each(self) -> tuple[float, ...]:
        return self.precision if isinstance(self.precision, tuple) else (self.precision,)

    def _check_targets(self, outputs: Tensor, targets: Tensor) -> None:
        self.precisions(outputs)
        super()._check_targets(outputs, targets)


@final
@dataclass(frozen=True, repr=False)
class HeteroscedasticGaussian(Elementwise):
    """p(y | f) = N(y; m, e^s) with outputs f = (m_1 ... m_c, s_1 ... s_c): all means, then all log variances.

    The Hessian of the loss in (m, s) can be indefinite, so B is the Fisher information, its expectation
    under the model: diag(e^{-s}, 1/2). It is positive definite and does not depend on the target.

    Example:
        >>> HeteroscedasticGaussian().hessian(torch.zeros(1, 2)).diagonal(dim1=-2, dim2=-1)
        tensor([[1.0000, 0.5000]])
    """

    hint: ClassVar[str] = "one number for each two outputs (mean, log variance)"
    real: ClassVar[bool] = True

    def _nll(
        self, outputs: Float[Tensor, "*batch two_c"], targets: Float[Tensor, "*batch c"]
    ) -> Float[Tensor, "*batch"]:
        """Σ_i e^{-s_i} (y_i - m_i)² / 2 + s_i / 2 + log(2π) / 2 in nats."""
        means, log_variances = means_and_log_variances(outputs)
        squares = torch.exp(-log_variances) * (targets - means).square()
        return 0.5 * (squares + log_variances + math.log(2 * math.pi)).sum(-1)

    def _score(
        self, outputs: Float[Tensor, "*batch two_c"], targets: Float[Tensor, "*batch c"]
    ) -> Float[Tensor, "*batch two_c"]:
        """(e^{-s} (y - m), (e^{-s} (y - m)² - 1) / 2)."""
        means, log_variances = means_and_log_variances(outputs)
        precisions = torch.exp(-log_variances)
        residuals = targets - means
        return torch.cat([precisions * residuals, 0.5 * (precisions * residuals.square() - 1)], -1)

    def _diagonal(self, outputs: Float[Tensor, "*batch two_c"]) -> Float[Tensor, "*batch two_c"]:
        """(e^{-s}, 1/2), the diagonal of the Fisher information."""
        _, log_variances = means_and_log_variances(outputs)
        precisions = torch.exp(-log_variances)
        return torch.cat([precisions, torch.full_like(precisions, 0.5)], -1)

    def draw(
        self, outputs: Float[Tensor, "*batch two_c"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*batch c"]:
        """Targets m + e^{s/2} ε with ε standard normal."""
        means, log_variances = means_and_log_variances(outputs)
        noise = probes.gaussian(means.shape, like=means, generator=generator)
        return means + noise * torch.exp(0.5 * log_variances)

    def mean(self, outputs: Float[Tensor, "*batch two_c"]) -> Float[Tensor, "*batch c"]:
        """The means m."""
        return means_and_log_variances(outputs)[0]

    def _predictive(self, outputs: Outputs, link: Link, samples: int, generator: torch.Generator | None) -> Regression:
        return Regression.heteroscedastic(outputs)

    def known_outputs(self, outputs: Outputs) -> Outputs:
        """See ``Likelihood.known_outputs``: the means."""
        return outputs.select(slice(outputs.mean.shape[-1] // 2))

    def _outputs_at(self, location: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch two_c"]:
        """Means, and log variances of 0."""
        return torch.cat([location, torch.zeros_like(location)], -1)

    def _check_targets(self, outputs: Tensor, targets: Tensor) -> None:
        hint = "a network whose log variances are bounded below, or Gaussian() for noise of one size"
        check_logarithms(-means_and_log_variances(outputs)[1], "precision", hint)
        super()._check_targets(outputs, targets)
