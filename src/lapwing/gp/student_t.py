"""Gaussian processes that a few targets do not bend: Laplace's approximation under Student-t noise."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.gp.kernels.base import Kernel
from lapwing.gp.kernels.matrix import check_room
from lapwing.gp.laplace import RTOL, LaplaceProcess
from lapwing.gp.observations import Observations
from lapwing.gp.robust_mode import RobustLoss, RobustPoint, robust_mode
from lapwing.gp.tuning.tunable import LeastNoise
from lapwing.ground.errors import ConvergenceWarning, DataError, DataWarning, NumericalError, warn
from lapwing.ground.precision import wide
from lapwing.likelihoods import StudentT
from lapwing.linalg import Dense
from lapwing.linear.mode.loss import Mode

ENOUGH = 1e-5
"""Relative gradient above which a mode is warned of."""

LARGEST = 1e150
"""Largest size of a target, whose square is a number still."""

ROUNDING = 1e2
"""Smallest squared scale that is chosen, over the rounding of the targets' squares."""

NARROWEST = 0.1
"""Precision, where that of the prior is 1, below which the posterior is too wide for Laplace's approximation."""

BESIDE = 1.2
"""Times that precision, below which tuning ended beside it."""

OFF = 5.0
"""Standard deviations of the prior that half of the targets may be off 0 without a warning."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class StudentTGPPosterior(LaplaceProcess):
    """A process of mean 0 with Student-t noise, Gaussian around the best of its modes; see ``LaplaceProcess``.

    Far targets have a negative second derivative in ``B``, which widens the posterior there: at a strict mode
    ``1 + Lᵀ B L`` is positive definite all the same. There may be several modes, where two groups of targets
    contradict each other; the posterior is that around the highest one found from several starts
    (``robust_mode``), and does not say that there are others. Source: Vanhatalo, Jylänki and Vehtari (2009), "Gaussian
    process regression with Student-t likelihood".

    Args:
        kernel: k.
        likelihood: ``StudentT(df, scale)``.
        data: X, and y of one output.
        trace: Steps of tuning.
        start: Outputs at the data near which a mode is; ``None`` if nobody knows.

    Example:
        >>> import lapwing as lw
        >>> x = torch.linspace(0, 6, 40, dtype=torch.float64)[:, None]
        >>> y = x[:, 0].sin()
        >>> y[7] = 50.0
        >>> posterior = lw.GP(lw.gp.RBF(), lw.StudentT(df=4.0, scale=0.1)).fit((x, y))
        >>> posterior.predict(x[[7]]).mean
        tensor([[0.8841]], dtype=torch.float64)
    """

    likelihood: StudentT

    @classmethod
    def of(cls, kernel: Kernel, likelihood: StudentT, data: Observations) -> StudentTGPPosterior:
        """The posterior; its mode is found when it is first asked for.

        Args:
            kernel: k.
            likelihood: p(y | f).
            data: X, and y of one output.

        Raises:
            DataError: If there are several outputs, or a target is so large that its square overflows.
            ShapeError: If the kernel is for other inputs.
            TooLargeError: If there are too many observations.

        Warns:
            DataWarning: If the targets never vary, or half of them are far from the prior mean, which is 0.

        Cost:
            A Cholesky factor of a dense matrix ``[n, n]`` a step to the mode; some sixteen such matrices at a time, as
            measured with 2,000 rows.
        """
        if data.outputs != 1:
            hint = "a process for each, lw.GP(kernel, StudentT()).fit((x, y[:, [0]])), or Gaussian() for all together"
            raise DataError("targets [n] or [n, 1] for a process with StudentT", f"{list(data.targets.shape)}", hint)
        largest = float(data.targets.abs().max())
        if largest > LARGEST:
            raise DataError(f"targets up to {LARGEST:g}", f"one of size {largest:.3g}", "targets in a larger unit")
        size = (len(data), len(data))
        check_room(
            "a kernel matrix", size, wide(data.inputs[:1]), "fewer observations, or Gaussian() and a solver for many"
        )
        posterior = cls(kernel, likelihood, data)
        posterior._check()
        posterior._warn_of_offset()
        return posterior

    def _warn_of_offset(self) -> None:
        """Warn where half of the targets are on one side of 0, further than the prior lets them be."""
        middle = float(self._exact.targets.median())
        size = float(self.kernel.diagonal(self._exact.inputs).mean().sqrt())
        if abs(middle) > OFF * (size + self.likelihood.scale):
            warn(
                f"targets whose median is {middle:.3g} under a prior of mean 0 and standard deviation {size:.3g}: far "
                "from the data predictions go to 0. Try targets less their median, or + lw.gp.Constant() in the kernel",
                DataWarning,
            )

    # ---- the mode ---------------------------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """One output."""
        return 1

    @property
    def _targets(self) -> Float[Tensor, "n 1"]:
        return self._exact.targets

    def _find_mode(self, start: Float[Tensor, " n"] | None) -> Mode:
        loss = RobustLoss.of(self._root, self._targets[:, 0], self.likelihood)
        found = robust_mode(loss, [] if start is None else [start], rtol=RTOL)
        if not found.gradient <= ENOUGH:
            warn(
                f"the mode was found to a relative gradient of {found.gradient:.1e} alone. Try a larger scale, or "
                "targets of size 1",
                ConvergenceWarning,
            )
        return found

    def _curvature(self, outputs: Float[Tensor, "n 1"]) -> Float[Tensor, "n 1 1"]:
        return self.likelihood.second_derivative(outputs, self._targets)[..., None]

    def _at_mode(self) -> RobustPoint:
        """The loss at the mode."""
        loss = RobustLoss.of(self._root, self._targets[:, 0], self.likelihood)
        return loss.at(self.mode.weights)

    def _make_precision(self) -> Dense:
        point = self._at_mode()
        found = Dense(point.hessian)
        if not found.has_cholesky:
            raise NumericalError(
                "a mode around which the posterior is a Gaussian",
                "a stationary point that is no strict mode",
                "a larger scale, or more degrees of freedom",
            )
        if not point.exceeds(NARROWEST):
            warn(
                f"the posterior is more than {NARROWEST**-0.5:.1f} times as wide as the prior: its mode is about to "
                "vanish, and variances and evidence of Laplace's approximation mean nothing there. Try more degrees of "
                "freedom, or a larger scale",
                ConvergenceWarning,
            )
        return found

    # ---- evidence and hyper-parameters ------------------------------------------------------------------------------

    def tuned(self, method: Any, progress: bool | None) -> StudentTGPPosterior:
        """See ``lapwing.tune``.

        Raises:
            NumericalError: If the mode is about to vanish where it starts.

        Warns:
            ConvergenceWarning: If it ended where the mode is about to vanish, beyond which there is no evidence.
        """
        found = super().tuned(method, progress)
        if not found._at_mode().exceeds(BESIDE * NARROWEST):
            warn(
                "tuning ended where the mode is about to vanish, because the evidence of Laplace's approximation grows "
                "without bounds there. Its choices are not to be trusted: try more degrees of freedom than "
                f"{self.likelihood.df:g}, or another scale to start from",
                ConvergenceWarning,
            )
        return found

    def evidence_and_gradient(self) -> tuple[float, Float[Tensor, " h"]]:
        """See ``Tunable``; a mode that is about to vanish has none, for its determinant makes it arbitrarily large.

        Raises:
            NumericalError: If the posterior is much wider than the prior in some direction.
        """
        if not self._at_mode().exceeds(NARROWEST):
            raise NumericalError(
                "a mode around which the posterior is not much wider than the prior, to climb its evidence",
                "one that is about to vanish",
                "a larger scale to start from, or more degrees of freedom",
            )
        return super().evidence_and_gradient()

    def gradient(self) -> Float[Tensor, " h"]:
        """That of ``log_marginal`` in the kernel's ``hyper`` and in ``log σ²``, while the mode moves along.

            ∂/∂ log σ = -Σ_i ∂ℓ_i - ½ Σ_i Σ_ii ∂B_i + sᵀ Σ ∂α

        with ``ℓ = -log p(y | f)``, ``α = ∇ log p(y | f)``, and ``s`` and ``Σ`` of ``LaplaceProcess.gradient``.
        """
        sigma = self._covariance
        s = self._slope_in_mode(sigma)
        of_loss, of_score, of_second = self.likelihood.scale_derivatives(self.fitted, self._targets)
        matrix = sigma[:, 0, :, 0]
        bent = matrix.diagonal() @ of_second[:, 0]
        moved = s[:, 0] @ (matrix @ of_score[:, 0])
        by_scale = -of_loss.sum() - 0.5 * bent + moved
        return torch.cat([self._kernel_gradient(sigma, s), 0.5 * by_scale[None].to("cpu")])

    def log_hyperparameters(self) -> Float[Tensor, " h"]:
        """See ``Tunable``; the last is log σ²."""
        scale = torch.tensor([self.likelihood.scale], dtype=torch.float64, device="cpu")
        return torch.cat([self.kernel.hyper, 2 * scale.log()])

    def hyperparameter_names(self) -> list[str]:
        """See ``Tunable``."""
        return [*self.kernel.labels(), "squared scale"]

    def least_noise(self) -> LeastNoise:
        """See ``Tunable``; of the squared scale, from the size of targets that are not far off."""
        size = self._exact.targets.abs().median().cpu()
        least = ROUNDING * torch.finfo(torch.float64).eps * size.square()
        return LeastNoise(least.clamp_min(torch.finfo(torch.float64).tiny)[None], torch.float64)

    def with_log_hyperparameters(self, logs: Float[Tensor, " h"]) -> StudentTGPPosterior:
        """See ``Tunable``."""
        scale = float((0.5 * logs[-1]).exp())
        return self.with_hyperparameters(self.kernel.with_hyper(logs[:-1]), replace(self.likelihood, scale=scale))

    def with_hyperparameters(self, kernel: Kernel, likelihood: StudentT | None = None) -> StudentTGPPosterior:
        """The posterior with another kernel or likelihood; its mode is looked for near the one that is known, too.

        Args:
            kernel: k.
            likelihood: p(y | f); ``None`` for the same.
        """
        return replace(self, kernel=kernel, likelihood=likelihood or self.likelihood, start=self._near())
