"""Real targets with Gaussian noise of one size, or one size an output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data import check_finite
from lapwing.ground.errors import ConfigError, DataError, ShapeError
from lapwing.likelihoods.base import Likelihood
from lapwing.likelihoods.targets import check_shape, elementwise, is_integral


@final
@dataclass(frozen=True)
class Gaussian(Likelihood):
    """p(y | f) = N(y; f, 1/ρ), independently over the outputs; B = diag(ρ).

    Args:
        precision: Noise precision ρ = 1 / noise variance, in 1 / (units of y)²: one number, or one an output.

    Raises:
        ConfigError: If a precision is not a positive finite number.

    Example:
        >>> likelihood = Gaussian(precision=4.0)
        >>> likelihood.noise_std, likelihood.hessian(torch.zeros(1, 1))
        (0.5, tensor([[[4.]]]))
    """

    precision: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        value = self.precision
        clean = tuple(float(x) for x in value) if isinstance(value, Sequence) else float(value)
        object.__setattr__(self, "precision", clean)
        values = clean if isinstance(clean, tuple) else (clean,)
        if not values or not all(x > 0 and math.isfinite(x) for x in values):
            raise ConfigError(
                "a positive finite noise precision, or one an output",
                f"precision={value}",
                "Gaussian(precision=1 / noise_std**2)",
            )

    @property
    def noise_std(self) -> float | tuple[float, ...]:
        """Noise standard deviation 1 / √ρ, in the units of y."""
        if isinstance(self.precision, tuple):
            return tuple(x**-0.5 for x in self.precision)
        return self.precision**-0.5

    def with_precision(self, precision: float | Sequence[float] | Tensor) -> Gaussian:
        """The same likelihood with another noise precision.

        Args:
            precision: One number, or one an output ``[c]``.
        """
        value = precision.tolist() if isinstance(precision, Tensor) else precision
        return replace(self, precision=tuple(value) if isinstance(value, Sequence) else value)

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

    def canonical_targets(self, outputs: Float[Tensor, "*batch c"], targets: Tensor) -> Tensor:
        """Targets ``[n, *event, c]`` in the dtype of the outputs; see ``Likelihood.canonical_targets``."""
        _check_real(targets)
        return elementwise(targets, outputs, self.class_dim, "targets with one number an output")

    def _nll(self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch"]:
        """Σ_i ρ_i (y_i - f_i)² / 2 + log(2π / ρ_i) / 2 in nats."""
        precision = self.precisions(outputs)
        return 0.5 * (precision * (targets - outputs).square() + torch.log(2 * math.pi / precision)).sum(-1)

    def _score(
        self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]
    ) -> Float[Tensor, "*batch c"]:
        """Scaled residual ρ (y - f)."""
        return self.precisions(outputs) * (targets - outputs)

    def _hessian(
        self, outputs: Float[Tensor, "*batch c"], targets: Tensor | None = None
    ) -> Float[Tensor, "*batch c c"]:
        """B = diag(ρ)."""
        return torch.diag_embed(self.precisions(outputs).expand(outputs.shape))

    def _root(self, outputs: Float[Tensor, "*batch c"], targets: Tensor | None = None) -> Float[Tensor, "*batch c c"]:
        """S = diag(√ρ)."""
        return torch.diag_embed(self.precisions(outputs).sqrt().expand(outputs.shape))

    def misfit(self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]) -> Float[Tensor, ""]:
        """Squared error of all targets, weighted by the noise precision: Σ ρ_i (y_i - f_i)², added up in float64."""
        errors = self.precisions(outputs) * (targets - outputs).square()
        return self.weight * errors.double().sum()

    def draw(
        self, outputs: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*batch c"]:
        """Targets f + ε / √ρ with ε standard normal."""
        noise = probes.gaussian(outputs.shape, like=outputs, generator=generator)
        return outputs + noise * self.precisions(outputs).rsqrt()

    def mean(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """The outputs themselves."""
        return outputs

    def _count(self, targets: Tensor) -> int:
        """Number of real numbers observed, n · c."""
        return targets.numel()

    def _check_targets(self, outputs: Tensor, targets: Tensor) -> None:
        _check_real(targets)
        check_shape(targets, tuple(outputs.shape), "targets with one number an output")
        self.precisions(outputs)
        check_finite(targets, "targets", "dropping the examples without a target")


def _check_real(targets: Tensor) -> None:
    if is_integral(targets) or targets.dtype == torch.bool:
        raise DataError(
            "real targets for Gaussian",
            f"targets of type {targets.dtype}",
            "targets.float() for regression, Categorical() for class labels, Poisson() for counts",
        )
