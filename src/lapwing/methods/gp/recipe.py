"""Gaussian process regression: a kernel, noise, and how the solves are made."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data import Source
from lapwing.ground.errors import UnsupportedError, check_kind
from lapwing.likelihoods import Gaussian
from lapwing.methods.gp.kernels import Kernel
from lapwing.methods.gp.observations import Observations, check_suitable
from lapwing.methods.gp.process import Process
from lapwing.methods.gp.settings import Settings
from lapwing.methods.gp.stationary import Matern

NOISE = 0.1
"""Part of the targets' variance that tuning takes for noise at first."""


@final
@dataclass(frozen=True)
class GP(Settings):
    """A Gaussian process prior and noise; ``fit`` makes it a posterior.

        y = h(x) β + f(x) + ε,   f ~ GP(0, k),   ε ~ N(0, 1/ρ)                       (Antorán 2024, section 2.2)

    Args:
        kernel: k; ``None`` for a Matérn 3/2 with one length-scale a dimension, see ``lengthscales``, and the variance
            of the targets.
        likelihood: Noise of the targets, a precision ρ for all outputs; ``None`` for a tenth of the targets' variance,
            to tune from.
        mean: h: ``"zero"``, an unknown ``"constant"``, or an unknown plane, ``"linear"``.
        solver: What solves, or ``"auto"``; see ``Settings``.
        samples: Functions behind variances.
        features: Random features of a function.
        progress: Whether solves show a bar with their residual.
        seed: Of everything random.

    Raises:
        ConfigError: If an option makes no sense.

    Example:
        >>> import torch
        >>> x = torch.linspace(0, 6, 50)[:, None]
        >>> posterior = GP(Matern(1.0), Gaussian(100.0)).fit((x, x.sin()))
        >>> posterior.predict(torch.tensor([[3.0]])).mean
        tensor([[0.1410]])
    """

    kernel: Kernel | None = field(default=None, kw_only=False)
    likelihood: Gaussian | None = field(default=None, kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel is not None:
            check_kind("kernel", self.kernel, (Kernel,), "gp.Matern(1.0), or gp.Custom(function)")
        hint = "Gaussian(precision=100.0), or gp.LaplaceProcess.fit(kernel, likelihood, data) for classes and counts"
        check_kind("likelihood", self.likelihood, (Gaussian, type(None)), hint)
        if self.likelihood is not None and isinstance(self.likelihood.precision, tuple):
            hint = "a process for each output, or outputs divided by their noise"
            raise UnsupportedError("one noise precision for all outputs", f"{self.likelihood.precision}", hint)

    def fit(self, data: Source, *, relative_noise: Float[Tensor, " n"] | None = None) -> Process:
        """The posterior.

        Args:
            data: Inputs ``[n, p]`` and targets ``[n]`` or ``[n, c]``: a pair of tensors, arrays, data frames or
                lists, or a loader.
            relative_noise: Where the noise of each observation is known, how many times ``1/ρ`` its variance is.

        Raises:
            DataError: If there are no data, they are not finite, or they do not tell a linear mean.
            ShapeError: If inputs or targets have other shapes, or the kernel is for other inputs.

        Warns:
            DataWarning: If the targets never vary.

        Cost:
            None yet: solves are made when they are first asked for, and kept.
        """
        observations = Observations.of(data, relative_noise)
        variance = float(spreads(observations.targets).square().mean()) or 1.0
        kernel = variance * Matern(lengthscales(observations.inputs)) if self.kernel is None else self.kernel
        check_suitable(kernel, self.mean, observations)
        likelihood = Gaussian(1 / (NOISE * variance)) if self.likelihood is None else self.likelihood
        settings = Settings(**{each.name: getattr(self, each.name) for each in fields(Settings)})
        return Process(kernel, likelihood, observations, settings)


def lengthscales(inputs: Float[Tensor, "n p"]) -> tuple[float, ...]:
    """Length-scales at which functions vary about once over the data: ``√p`` times the median of ``|x_j - x'_j|``.

    Where most inputs are alike in a dimension it is their standard deviation, and 1 where all are.

    Args:
        inputs: X.

    Returns:
        One a dimension, in the units of the inputs.

    Example:
        >>> import torch
        >>> lengthscales(torch.tensor([[0.0], [4.0]]))
        (4.0,)
    """
    x = inputs.double().cpu()
    x = x[torch.tensor(probes.permutation(len(x), generator=torch.Generator().manual_seed(0)))]
    apart, spread = (x - x.roll(1, 0)).abs().median(0).values, spreads(x)
    scales = x.shape[1] ** 0.5 * torch.where(apart > 0, apart, spread)
    return tuple(torch.where(spread > 0, scales, 1.0).tolist())


def spreads(values: Float[Tensor, "n p"]) -> Float[Tensor, " p"]:
    """The standard deviation of each column, float64; 0 where all are alike, whose mean may be another by rounding."""
    x = values.double()
    return torch.where((x == x[0]).all(0), 0.0, x.std(0, correction=0))
