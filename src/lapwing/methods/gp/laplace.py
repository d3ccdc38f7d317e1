"""Gaussian processes of classes and counts by Laplace's approximation: the mode of a linear model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.data import Source
from lapwing.ground.errors import DataError, check_kind
from lapwing.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson
from lapwing.linalg import Dense, Diagonal
from lapwing.linear.loss import Mode
from lapwing.linear.matrix import Matrix
from lapwing.linear.tangent import Tangent
from lapwing.methods.gp.kernels import Kernel
from lapwing.methods.gp.matrix import KernelMatrix, check_room, cross
from lapwing.methods.gp.observations import Observations
from lapwing.predictive import Moments, Predictive, predictive

JITTER = 1e-10
"""Part of the mean variance that is added to the kernel matrix, so that it has a Cholesky factor."""

ROUNDING = 10.0
"""Of the rounding of a sum over a row, in multiples: what is added is at least that."""

RTOL = 1e-9
"""Relative gradient at which the mode is found."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class LaplaceProcess:
    """A process of mean 0 under a likelihood, Gaussian around its mode (Rasmussen & Williams 2006, section 3.4).

    With ``K = L Lᵀ`` the outputs at the data are ``f = L u``, ``u ~ N(0, 1)``: a linear model, whose mode, precision
    ``1 + Lᵀ B L`` and evidence are those of the process.

    Args:
        kernel: k, of each output.
        likelihood: p(y | f), such as ``Bernoulli()`` or ``Categorical()``.
        data: X and y.

    Example:
        >>> import lapwing as lw
        >>> x = torch.linspace(-2, 2, 20, dtype=torch.float64)[:, None]
        >>> process = LaplaceProcess.fit(lw.gp.RBF(), lw.Categorical(), (x, (x[:, 0] > 0).long()))
        >>> process.predict(x[[0, -1]]).probs.argmax(-1)
        tensor([0, 1])
    """

    kernel: Kernel
    likelihood: Likelihood
    data: Observations

    @classmethod
    def fit(cls, kernel: Kernel, likelihood: Likelihood, data: Source) -> LaplaceProcess:
        """The posterior; its mode is found when it is first asked for.

        Args:
            kernel: k.
            likelihood: p(y | f).
            data: Inputs ``[n, p]`` and targets, as the likelihood has them, of one axis or two.

        Raises:
            DataError: If there are no data, they are not finite, or labels are no whole numbers.
            ShapeError: If inputs or targets have other shapes.

        Cost:
            A dense matrix ``[n c, n c]`` for c outputs, and its factor a Newton step.
        """
        check_kind("kernel", kernel, (Kernel,), "Matern(1.0)")
        check_kind("likelihood", likelihood, (Bernoulli, Categorical, Gaussian, Poisson), "Bernoulli()")
        found = Observations.of(data)
        if isinstance(likelihood, Categorical) and not (
            found.outputs == 1 and bool((found.targets == found.targets.floor()).all())
        ):
            hint = "targets.argmax(-1) for one-hot labels"
            raise DataError("integer class labels [n] for Categorical", f"targets {list(found.targets.shape)}", hint)
        return cls(kernel, likelihood, found)

    def __repr__(self) -> str:
        n, p = self.data.inputs.shape
        return f"LaplaceProcess({self.kernel}, {self.likelihood}, {n} observations in {p} dimensions)"

    @cached_property
    def mode(self) -> Mode:
        """Of ``u = L⁻¹ f``."""
        return self._model.mode(self._prior, rtol=RTOL)

    @property
    def fitted(self) -> Float[Tensor, "n c"]:
        """The outputs at the data, ``L u`` at the mode."""
        return self._features(self._root.mT) @ self.mode.weights

    def outputs(self, x: Float[Tensor, "m p"]) -> Moments:
        """What is known of the outputs.

        Args:
            x: Inputs.
        """
        x = self.data.check(x)
        with torch.no_grad():
            across = torch.linalg.solve_triangular(self._root, cross(self.kernel, self.data.inputs, x), upper=False)
            rest = (self.kernel.diagonal(x) - across.square().sum(0)).clamp_min(0.0)
            features = self._features(across)
            solved = self._precision.solve(features.flatten(0, 1).mT).mT.view_as(features)
            within = features @ solved.mT
            mean = features @ self.mode.weights
            return Moments(mean, within + torch.diag_embed(rest[:, None].expand_as(mean)))

    def predict(self, x: Float[Tensor, "m p"]) -> Predictive:
        """The distribution of targets at some inputs.

        Args:
            x: Inputs.

        Raises:
            DataError: If there are no inputs, or they are not finite.
            ShapeError: If they have another shape.
        """
        return predictive(self.likelihood, self.outputs(x))

    def log_marginal(self) -> float:
        """``log p(y | f) - ½ |u|² - ½ log |1 + Lᵀ B L|`` at the mode, nats (equation 3.32 of the same)."""
        size = float(self.mode.weights.square().sum())
        return -self.mode.nll - 0.5 * size - 0.5 * float(self._precision.logdet())

    @cached_property
    def _root(self) -> Float[Tensor, "n n"]:
        matrix = KernelMatrix(self.kernel, self.data.inputs).dense()
        jitter = max(JITTER, ROUNDING * len(matrix) * torch.finfo(matrix.dtype).eps)
        matrix.diagonal().add_(jitter * matrix.diagonal().mean())
        return torch.linalg.cholesky(matrix)

    @property
    def _width(self) -> int:
        return int(self.data.targets.max()) + 1 if isinstance(self.likelihood, Categorical) else self.data.outputs

    @property
    def _targets(self) -> Float[Tensor, "n c"] | Int[Tensor, " n"]:
        return self.data.targets[:, 0].long() if isinstance(self.likelihood, Categorical) else self.data.targets

    @property
    def _prior(self) -> Diagonal:
        return Diagonal(self.data.inputs.new_ones(len(self.data) * self._width))

    @cached_property
    def _model(self) -> Tangent:
        return Tangent(Matrix(self._features(self._root.mT), self._targets, self.likelihood))

    @cached_property
    def _precision(self) -> Dense:
        return Dense(self._model.problem(self.mode.weights, self._prior).precision.dense())

    def _features(self, across: Float[Tensor, "n m"]) -> Float[Tensor, "m c d"]:
        """``aᵀ ⊗ 1`` of each column a: every output has a u of its own."""
        c, (n, m) = self._width, across.shape
        check_room("features of all outputs", (m, c, n * c), across, "fewer observations")
        return torch.einsum("nm,cd->mcnd", across, torch.eye(c).to(across)).flatten(2)
