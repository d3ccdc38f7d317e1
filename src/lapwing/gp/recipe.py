"""Gaussian processes: a kernel, a likelihood, and how the solves are made."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.gp.classification import LaplaceGPPosterior
from lapwing.gp.kernels.base import Kernel, Kernels, each_of
from lapwing.gp.kernels.stationary import Matern
from lapwing.gp.observations import Observations, check_suitable
from lapwing.gp.regression.posterior import GPPosterior
from lapwing.gp.regression.settings import Settings
from lapwing.gp.student_t import StudentTGPPosterior
from lapwing.ground import probes
from lapwing.ground.data.sources import Source
from lapwing.ground.errors import ConfigError, DataWarning, check_kind, warn
from lapwing.ground.precision import wide
from lapwing.ground.progress import working
from lapwing.likelihoods import Bernoulli, Categorical, Gaussian, Poisson, StudentT

UNLIKE = 10.0
"""Factor between the spreads of outputs up to which they may have one kernel without a warning."""

QUARTILE = 0.6744897501960817
"""The upper quartile of a standard normal number: half of them are nearer to 0."""

NOISE = 0.1
"""Part of the targets' variance that tuning takes for noise at first."""


@final
@dataclass(frozen=True)
class GP(Settings):
    """A Gaussian process prior and a likelihood; ``fit`` makes it a posterior.

        y = h(x) β + f(x) + ε,   f ~ GP(0, k),   ε ~ N(0, 1/ρ)                       (Antorán 2024, section 2.2)

    Of classes, labels and counts, and of real targets with Student-t noise, ``y ~ p(y | f(x))``, by Laplace's
    approximation (Rasmussen & Williams 2006, section 3.4): the mean of f before data is 0, and Cholesky's method
    solves, in float64; nothing is random.

    Args:
        kernel: k for all outputs, or a tuple of one an output; ``None`` for a Matérn 3/2 with one length-scale a
            dimension, see ``lengthscales``, and the variance of the targets, of classes and counts 1, with Student-t
            noise that of the half of the targets nearest to their median.
        likelihood: Noise of the targets, a precision ρ for all outputs or a tuple of one an output, which are tuned
            each; ``None`` for a tenth of each output's variance, to tune from. Or ``Bernoulli()``, ``Categorical()``,
            ``Poisson()`` or ``StudentT()``.
        mean: h: ``"zero"``, an unknown ``"constant"``, or an unknown plane, ``"linear"``.
        solver: What solves, or ``"auto"``; see ``Settings``.
        samples: Functions behind variances.
        features: Random features of a function; see ``Settings``.
        dtype: Of solves; see ``Settings``.
        progress: Whether solves show a bar with their residual; ``None`` for after two seconds, in a terminal or
            notebook.
        seed: Of everything random.

    Raises:
        ConfigError: If an option makes no sense, or not for classes and counts.

    Example:
        >>> import torch
        >>> x = torch.linspace(0, 6, 50)[:, None]
        >>> posterior = GP(Matern(1.0), Gaussian(100.0)).fit((x, x.sin()))
        >>> posterior.predict(torch.tensor([[3.0]])).mean
        tensor([[0.1410]])
        >>> GP(likelihood=Categorical()).fit((x, (x[:, 0] > 3).long())).predict(torch.tensor([[6.0]])).probs.argmax()
        tensor(1)
    """

    kernel: Kernels | None = field(default=None, kw_only=False)
    likelihood: Gaussian | Bernoulli | Categorical | Poisson | StudentT | None = field(default=None, kw_only=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for kernel in () if self.kernel is None else each_of(self.kernel):
            hint = "gp.Matern(1.0), gp.Custom(function), or a tuple of one kernel an output"
            check_kind("kernel", kernel, (Kernel,), hint)
        kinds = (Gaussian, Bernoulli, Categorical, Poisson, StudentT, type(None))
        check_kind("likelihood", self.likelihood, kinds, "Gaussian(precision=100.0), or Categorical() for classes")
        if isinstance(self.likelihood, Gaussian) and self.likelihood.weight != 1:
            got = f"Gaussian(weight={self.likelihood.weight:g})"
            hint = "fit((x, y), relative_noise=1 / w), where rows stand for w rows of the same inputs"
            raise ConfigError("a noise without a weight for a Gaussian process", got, hint)
        if self.likelihood is not None and not self.likelihood.noise:
            self._check_without_noise()

    def _check_without_noise(self) -> None:
        """Refuse what only real targets with Gaussian noise have."""
        wrong = {
            "a tuple of kernels": isinstance(self.kernel, tuple),
            "mean='linear'": self.mean == "linear",
            f"solver={self.solver}": self.solver != "auto" and not self.solver.exact,
            "dtype=torch.float32": self.dtype == torch.float32,
        }
        for came, is_wrong in wrong.items():
            if is_wrong:
                hint = "one kernel, with Linear() or Constant() in it for a mean, and no other option"
                raise ConfigError(f"what a process with {type(self.likelihood).__name__} has", came, hint)

    @working("fit")
    def fit(
        self, data: Source, *, relative_noise: Float[Tensor, " n"] | None = None
    ) -> GPPosterior | LaplaceGPPosterior | StudentTGPPosterior:
        """The posterior.

        Args:
            data: Inputs ``[n, p]`` and targets ``[n]`` or ``[n, c]``: a pair of tensors, arrays, data frames or
                lists, or a loader.
            relative_noise: Where the noise of each observation is known, how many times ``1/ρ`` its variance is.

        Raises:
            ConfigError: If targets without Gaussian noise are given a noise each.
            DataError: If there are no data, they are not finite, not such as the likelihood knows, or do not tell a
                linear mean, or there are several outputs with Student-t noise.
            ShapeError: If inputs or targets have other shapes, or the kernel is for other inputs.

        Warns:
            DataWarning: If the targets never vary, outputs of very different spread have one kernel, or with Student-t
                noise half of the targets are far from 0.

        Cost:
            None yet: solves are made when they are first asked for, and kept. Outputs with kernels or noises of their
            own have a matrix each to solve with, alike ones have one together. Of classes and counts, and with
            Student-t noise, a dense matrix ``[n c, n c]``, and its factor a Newton step.
        """
        observations = Observations.of(data, relative_noise)
        if self.likelihood is None or isinstance(self.likelihood, Gaussian):
            return self._regression(observations, self.likelihood)
        if relative_noise is not None:
            raise ConfigError(
                f"no noise of each row with {type(self.likelihood).__name__}", "relative_noise=", "the call without it"
            )
        variance = near_variance(observations.targets) if isinstance(self.likelihood, StudentT) else 1.0
        kernel = variance * Matern(lengthscales(observations.inputs)) if self.kernel is None else self.kernel
        assert isinstance(kernel, Kernel)  # a tuple was refused
        if isinstance(self.likelihood, StudentT):
            return StudentTGPPosterior.of(kernel, self.likelihood, observations)
        return LaplaceGPPosterior.of(kernel, self.likelihood, observations)

    def _regression(self, observations: Observations, likelihood: Gaussian | None) -> GPPosterior:
        """Under Gaussian noise."""
        variances = [float(spread) ** 2 or 1.0 for spread in standard_deviations(observations.targets)]
        variance = sum(variances) / len(variances)
        kernel = variance * Matern(lengthscales(observations.inputs)) if self.kernel is None else self.kernel
        check_suitable(kernel, self.mean, observations)
        if not isinstance(kernel, tuple) and max(variances) > UNLIKE**2 * min(variances):
            low = min(variances) ** 0.5
            high = max(variances) ** 0.5
            warn(
                f"one kernel for outputs whose standard deviations go from {low:.3g} to {high:.3g} is wrong for some. "
                "Try targets in units of their spread, or kernel=(...) with one an output",
                DataWarning,
            )
        noise = likelihood or Gaussian(_precisions(variances))
        noise.precisions(observations.targets)
        options: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(Settings)}
        return GPPosterior(kernel, noise, observations, Settings(**options))


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
    x = wide(inputs).cpu()
    x = x[torch.tensor(probes.permutation(len(x), generator=torch.Generator().manual_seed(0)))]
    distance = (x - x.roll(1, 0)).abs().median(0).values
    spread = standard_deviations(x)
    scales = x.shape[1] ** 0.5 * torch.where(distance > 0, distance, spread)
    return tuple(torch.where(spread > 0, scales, 1.0).tolist())


def standard_deviations(values: Float[Tensor, "n p"]) -> Float[Tensor, " p"]:
    """That of each column, float64; 0 where all are alike, whose mean may be another by rounding."""
    x = wide(values)
    return torch.where((x == x[0]).all(0), 0.0, x.std(0, correction=0))


def near_variance(targets: Float[Tensor, "n c"]) -> float:
    """The variance of a Gaussian half of which is as near to its median as half of the targets are; 1 where that is 0.

    Example:
        >>> import torch
        >>> near_variance(torch.tensor([[-1.0], [0.0], [1.0], [1.0], [1e6]]))
        2.198...
    """
    y = wide(targets)
    distance = float((y - y.median(0).values).abs().median())
    return (distance / QUARTILE) ** 2 or 1.0
