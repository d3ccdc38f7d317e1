"""Gaussian process regression: a kernel, noise, and how the solves are made."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data.sources import Source
from lapwing.ground.errors import DataWarning, check_kind, warn
from lapwing.likelihoods import Gaussian
from lapwing.methods.gp.groups import Kernels, each_of
from lapwing.methods.gp.kernels import Kernel
from lapwing.methods.gp.observations import Observations, check_suitable
from lapwing.methods.gp.process import Process
from lapwing.methods.gp.settings import Settings
from lapwing.methods.gp.stationary import Matern

UNLIKE = 10.0
"""Factor between the spreads of outputs up to which they may have one kernel without a warning."""

NOISE = 0.1
"""Part of the targets' variance that tuning takes for noise at first."""


@final
@dataclass(frozen=True)
class GP(Settings):
    """A Gaussian process prior and noise; ``fit`` makes it a posterior.

        y = h(x) β + f(x) + ε,   f ~ GP(0, k),   ε ~ N(0, 1/ρ)                       (Antorán 2024, section 2.2)

    Args:
        kernel: k for all outputs, or a tuple of one an output; ``None`` for a Matérn 3/2 with one length-scale a
            dimension, see ``lengthscales``, and the variance of the targets.
        likelihood: Noise of the targets, a precision ρ for all outputs or a tuple of one an output, which are tuned
            each; ``None`` for a tenth of each output's variance, to tune from.
        mean: h: ``"zero"``, an unknown ``"constant"``, or an unknown plane, ``"linear"``.
        solver: What solves, or ``"auto"``; see ``Settings``.
        samples: Functions behind variances.
        features: Random features of a function; see ``Settings``.
        dtype: Of solves; see ``Settings``.
        progress: Whether solves show a bar with their residual; ``None`` for after two seconds, in a terminal or
            notebook.
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

    kernel: Kernels | None = field(default=None, kw_only=False)
    likelihood: Gaussian | None = field(default=None, kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for kernel in () if self.kernel is None else each_of(self.kernel):
            hint = "gp.Matern(1.0), gp.Custom(function), or a tuple of one kernel an output"
            check_kind("kernel", kernel, (Kernel,), hint)
        hint = "Gaussian(precision=100.0), or gp.LaplaceProcess.fit(kernel, likelihood, data) for classes and counts"
        check_kind("likelihood", self.likelihood, (Gaussian, type(None)), hint)

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
            DataWarning: If the targets never vary, or outputs of very different spread have one kernel.

        Cost:
            None yet: solves are made when they are first asked for, and kept. Outputs with kernels or noises of their
            own have a matrix each to solve with, alike ones have one together.
        """
        observations = Observations.of(data, relative_noise)
        variances = [float(spread) ** 2 or 1.0 for spread in spreads(observations.targets)]
        variance = sum(variances) / len(variances)
        kernel = variance * Matern(lengthscales(observations.inputs)) if self.kernel is None else self.kernel
        check_suitable(kernel, self.mean, observations)
        if not isinstance(kernel, tuple) and max(variances) > UNLIKE**2 * min(variances):
            low, high = min(variances) ** 0.5, max(variances) ** 0.5
            warn(
                f"one kernel for outputs whose standard deviations go from {low:.3g} to {high:.3g} is wrong for some. "
                "Try targets in units of their spread, or kernel=(...) with one an output",
                DataWarning,
            )
        likelihood = self.likelihood or Gaussian(_precisions(variances))
        likelihood.precisions(observations.targets)
        settings = Settings(**{each.name: getattr(self, each.name) for each in fields(Settings)})
        return Process(kernel, likelihood, observations, settings)


def _precisions(variances: list[float]) -> float | tuple[float, ...]:
    """Noise precisions to tune from: of several outputs one each."""
    found = tuple(1 / (NOISE * variance) for variance in variances)
    return found[0] if len(found) == 1 else found


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
