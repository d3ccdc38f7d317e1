"""Gaussian processes of classes and counts by Laplace's approximation: the mode of a linear model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.gp.kernels.base import Kernel
from lapwing.gp.laplace import RTOL, LaplaceProcess
from lapwing.gp.observations import Observations
from lapwing.gp.tuning.tunable import LeastNoise
from lapwing.ground.errors import DataError
from lapwing.likelihoods import Categorical, Likelihood
from lapwing.linalg import Dense, Diagonal
from lapwing.linear.mode.loss import Mode
from lapwing.linear.model import Matrix
from lapwing.linear.solvers import Cholesky
from lapwing.linear.tangent import Tangent


@final
@dataclass(frozen=True, eq=False, repr=False)
class LaplaceGPPosterior(LaplaceProcess):
    """A process of classes or counts, whose loss is convex in the outputs; see ``LaplaceProcess``.

    Args:
        kernel: k, of each output.
        likelihood: p(y | f), such as ``Bernoulli()`` or ``Categorical()``.
        data: X and y.
        trace: Steps of tuning.
        start: Outputs at the data near which the mode is; ``None`` if nobody knows.

    Example:
        >>> import lapwing as lw
        >>> x = torch.linspace(-2, 2, 20, dtype=torch.float64)[:, None]
        >>> posterior = lw.GP(lw.gp.RBF(), lw.Categorical()).fit((x, (x[:, 0] > 0).long()))
        >>> posterior.predict(x[[0, -1]]).probs.argmax(-1)
        tensor([0, 1])
    """

    @classmethod
    def of(cls, kernel: Kernel, likelihood: Likelihood, data: Observations) -> LaplaceGPPosterior:
        """The posterior; its mode is found when it is first asked for.

        Args:
            kernel: k.
            likelihood: p(y | f).
            data: X, and y as the likelihood has it, of one axis or two.

        Raises:
            DataError: If there are no targets that the likelihood knows.
            ShapeError: If the kernel is for other inputs.
            TooLargeError: If there are too many outputs.

        Warns:
            DataWarning: If the targets never vary.

        Cost:
            A dense matrix ``[n c, n c]`` for c outputs, and its factor a Newton step.
        """
        whole = bool((data.targets == data.targets.floor()).all())
        if isinstance(likelihood, Categorical) and not (data.outputs == 1 and whole):
            hint = "targets.argmax(-1) for one-hot labels"
            raise DataError("integer class labels [n] for Categorical", f"targets {list(data.targets.shape)}", hint)
        posterior = cls(kernel, likelihood, data)
        posterior._check()
        return posterior

    @property
    def width(self) -> int:
        """Outputs c: one a class, or one a target."""
        if isinstance(self.likelihood, Categorical):
            return max(2, int(self.data.targets.max()) + 1)
        return self.data.outputs

    @property
    def _targets(self) -> Float[Tensor, "n c"] | Int[Tensor, " n"]:
        if isinstance(self.likelihood, Categorical):
            return self._exact.targets[:, 0].long()
        return self._exact.targets

    def _find_mode(self, start: Float[Tensor, " d"] | None) -> Mode:
        return self._model.mode(self._prior, solver=Cholesky(), initial=start, rtol=RTOL)

    def _curvature(self, outputs: Float[Tensor, "n c"]) -> Float[Tensor, "n c c"]:
        return self.likelihood.hessian(outputs, self._targets)

    @property
    def _prior(self) -> Diagonal:
        return Diagonal(self._exact.inputs.new_ones(len(self.data) * self.width))

    @cached_property
    def _model(self) -> Tangent:
        return Tangent(Matrix(self._features(self._root.mT), self._targets, self.likelihood))

    def _make_precision(self) -> Dense:
        return Dense(self._model.problem(self.mode.weights, self._prior).precision.dense())

    def log_hyperparameters(self) -> Float[Tensor, " h"]:
        """See ``Tunable``."""
        return self.kernel.hyper

    def hyperparameter_names(self) -> list[str]:
        """See ``Tunable``."""
        return self.kernel.labels()

    def least_noise(self) -> LeastNoise:
        """None: there is no noise to choose."""
        return LeastNoise(torch.zeros(0, dtype=torch.float64), torch.float64)

    def with_log_hyperparameters(self, logs: Float[Tensor, " h"]) -> LaplaceGPPosterior:
        """See ``Tunable``."""
        return self.with_hyperparameters(self.kernel.with_hyper(logs))

    def with_hyperparameters(self, kernel: Kernel) -> LaplaceGPPosterior:
        """The posterior with another kernel; its mode is looked for near the one that is known."""
        return replace(self, kernel=kernel, start=self._near())
