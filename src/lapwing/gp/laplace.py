"""Laplace's approximation of a Gaussian process under any likelihood: Gaussian around the mode of its outputs."""

from __future__ import annotations

import abc
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lapwing.gp.kernels.base import Index, Kernel, check_differentiable, check_recorded
from lapwing.gp.kernels.matrix import KernelMatrix, check_room, cross, gram, weighted_gradient
from lapwing.gp.observations import Observations, check_suitable
from lapwing.gp.tuning import Evidence, GPStep, Subset
from lapwing.gp.tuning.tunable import LeastNoise
from lapwing.ground import probes
from lapwing.ground.data.inputs import Array
from lapwing.ground.data.sources import Source
from lapwing.ground.errors import NumericalError, UnsupportedError, check_kind
from lapwing.ground.precision import moved, wide
from lapwing.ground.progress import working
from lapwing.ground.shared import fields_of
from lapwing.jacobian.live import live
from lapwing.likelihoods import Likelihood
from lapwing.linalg import Dense
from lapwing.linear.mode.loss import Mode
from lapwing.posteriors.predictive_module import predictive_module, quantities_asked
from lapwing.predictive import JointMoments, Moments, Predictive

L = TypeVar("L", bound="LaplaceProcess")

JITTER = 1e-10
"""Part of the mean variance that is added to the kernel matrix, so that it has a Cholesky factor."""

RTOL = 1e-9
"""Relative gradient at which a mode is found."""

SMALL = 1_000
"""Outputs at the data up to which tuning climbs the evidence of all of them, unless it is told another way."""


@final
class FoundMode:
    """The mode of a posterior: found when it is first asked for, once.

    Args:
        mode: Of ``u``, where it is known.
    """

    def __init__(self, mode: Mode | None = None) -> None:
        self.mode = mode
        self.lock = threading.RLock()


@dataclass(frozen=True, eq=False, repr=False)
class LaplaceProcess(abc.ABC):
    """A process of mean 0 under a likelihood, Gaussian around its mode (Rasmussen & Williams 2006, section 3.4).

    With ``K = L Lᵀ`` the outputs at the data are ``f = L u``, ``u ~ N(0, 1)``: a linear model, whose mode, precision
    ``1 + Lᵀ B L`` and evidence are those of the process; they are found in float64, whatever the data are in.

    Args:
        kernel: k, of each output.
        likelihood: p(y | f).
        data: X and y.
        trace: Steps of tuning.
        start: Outputs at the data near which the mode is; ``None`` if nobody knows.
    """

    kernel: Kernel
    likelihood: Likelihood
    data: Observations
    trace: tuple[GPStep, ...] = ()
    start: Float[Tensor, "n c"] | None = None
    found: FoundMode = field(init=False, default_factory=FoundMode)

    @classmethod
    @abc.abstractmethod
    def of(cls: type[L], kernel: Kernel, likelihood: Any, data: Observations) -> L:
        """The posterior; its mode is found when it is first asked for."""

    def _check(self) -> None:
        """Refuse data that the kernel or the likelihood does not take, and too many of them."""
        check_suitable(self.kernel, "zero", self.data)
        size = (len(self.data), self.width)
        check_room("outputs at the data", size, self.data.inputs, "classes numbered from 0")
        self.likelihood.check(self.data.inputs.new_zeros(1, 1).expand(size), self._targets)

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """Outputs c: one a class, or one a target."""

    @property
    @abc.abstractmethod
    def _targets(self) -> Float[Tensor, "n c"] | Int[Tensor, " n"]:
        """Canonical targets in float64, or labels."""

    @abc.abstractmethod
    def _find_mode(self, start: Float[Tensor, " d"] | None) -> Mode:
        """The mode of ``u``, looked for from a start, where there is one."""

    @abc.abstractmethod
    def _curvature(self, outputs: Float[Tensor, "n c"]) -> Float[Tensor, "n c c"]:
        """B, the second derivative of the loss in the outputs at the data, differentiable in these."""

    @abc.abstractmethod
    def _make_precision(self) -> Dense:
        """``1 + Lᵀ B L`` at the mode."""

    @cached_property
    def _precision(self) -> Dense:
        """The same, made once."""
        return self._make_precision()

    def __repr__(self) -> str:
        n, p = self.data.inputs.shape
        return f"{type(self).__name__}({self.kernel}, {self.likelihood}, {n} observations in {p} dimensions)"

    # ---- the mode ---------------------------------------------------------------------------------------------------

    @property
    def mode(self) -> Mode:
        """Of ``u = L⁻¹ f``."""
        with self.found.lock:
            if self.found.mode is None:
                initial = None
                if self.start is not None:
                    initial = torch.linalg.solve_triangular(self._root, self.start, upper=False).flatten()
                self.found.mode = self._find_mode(initial)
            return self.found.mode

    @cached_property
    def fitted(self) -> Float[Tensor, "n c"]:
        """The outputs at the data, ``L u`` at the mode, float64."""
        return self._root @ self.mode.weights.view(len(self.data), -1)

    @cached_property
    def _exact(self) -> Observations:
        """The data in float64."""
        return self.data.select(slice(None))

    @cached_property
    def _root(self) -> Float[Tensor, "n n"]:
        """``L Lᵀ = K + jitter``."""
        matrix = KernelMatrix(self.kernel, self._exact.inputs).dense()
        matrix.diagonal().add_(JITTER * matrix.diagonal().mean())
        lower, failed = torch.linalg.cholesky_ex(matrix)
        if bool(failed):
            hint = (
                "fewer inputs that are nearly alike, or for Custom a function that is symmetric and positive definite"
            )
            raise NumericalError("a kernel whose matrix is positive definite", "one that is not", hint)
        return lower

    def _features(self, across: Float[Tensor, "n m"]) -> Float[Tensor, "m c d"]:
        """``aᵀ ⊗ 1`` of each column a: every output has a u of its own."""
        c = self.width
        n, m = across.shape
        check_room("features of all outputs", (m, c, n * c), across, "fewer observations")
        return torch.einsum("nm,cd->mcnd", across, torch.eye(c).to(across)).flatten(2)

    # ---- predictions ------------------------------------------------------------------------------------------------

    @working("predict")
    def predict(
        self,
        x: Float[Tensor, "m p"] | Array | list[Any],
        *,
        joint: bool = False,
        generator: torch.Generator | int | None = None,
    ) -> Predictive:
        """The distribution of targets at some inputs.

        Args:
            x: Inputs.
            joint: Whether to return the covariance of outputs between them too.
            generator: Taken as all posteriors take it; what is exact here draws nothing.

        Raises:
            DataError: If there are no inputs, or they are not finite.
            ShapeError: If they have another shape.
        """
        source = probes.generator_of(generator)
        return self.likelihood.predictive(self.outputs(x, joint=joint), generator=source)

    def outputs(self, x: Float[Tensor, "m p"] | Array | list[Any], *, joint: bool = False) -> Moments | JointMoments:
        """What is known of the outputs.

        Where ``x`` asks for its gradient, all of it can be differentiated in ``x``.

        Args:
            x: Inputs.
            joint: Whether of all inputs together.
        """
        new = self.data.check(x)
        x = wide(new)
        if live(x):
            check_differentiable(self.kernel)
        c = self.width
        if joint:
            check_room("covariances of outputs", (len(x) * c,) * 2, new, "fewer inputs at a time")
        with torch.set_grad_enabled(live(x)):
            across = torch.linalg.solve_triangular(self._root, cross(self.kernel, self._exact.inputs, x), upper=False)
            features = self._features(across)
            solved = self._precision.solve(features.flatten(0, 1).mT).mT.view_as(features)
            mean = (features @ self.mode.weights).to(new)
            if joint:
                rest = gram(self.kernel, x) - across.mT @ across
                within = torch.einsum("mcd,led->mcle", features, solved)
                covariance = within + torch.einsum("ml,ce->mcle", rest, torch.eye(c).to(rest))
                return JointMoments(mean, covariance.to(new))
            rest = (self.kernel.diagonal(x) - across.square().sum(0)).clamp_min(0.0)
            within = features @ solved.mT
            return Moments(mean, within.to(new) + torch.diag_embed(rest.to(new)[:, None].expand_as(mean)))

    @working("module")
    def module(
        self,
        outputs: Sequence[str] | None = None,
        example: Float[Tensor, "m p"] | Array | list[Any] | None = None,
    ) -> nn.Module:
        """What is predicted as a module of plain PyTorch, for any number of inputs; see ``Posterior.module``.

        Args:
            outputs: As there.
            example: Some inputs, for their dtype; ``None`` for those of the data.

        Raises:
            UnsupportedError: If the kernel cannot be recorded.

        Cost:
            Memory ``n² c²`` for c outputs; a call takes as many multiplications an input.
        """
        check_recorded(self.kernel)
        x = self.data.check(self.data.inputs[:2] if example is None else example)
        names = quantities_asked(outputs, self.likelihood.labels)
        n = len(self.data)
        c = self.width
        root = torch.linalg.solve_triangular(self._root.mT, torch.eye(n).to(self._root), upper=True)
        places = torch.arange(n * c, device=root.device).view(n, c).mT
        form = self._precision.inverse_form().of_outer_products(places)
        modes = self.mode.weights.view(n, c)
        observed = self._exact.inputs

        def predicted(new: Float[Tensor, "m p"]) -> Predictive:
            at = wide(new)
            across = self.kernel(at, observed) @ root
            rest = (self.kernel.diagonal(at) - across.square().sum(1)).clamp_min(0.0)
            mean = (across @ modes).to(new)
            covariance = form(across) + rest[:, None, None] * torch.eye(c).to(rest)
            return self.likelihood.predictive(Moments(mean, covariance.to(new)))

        with torch.no_grad():
            return predictive_module(predicted, x, names)

    @working("sample functions")
    def sample_functions(
        self,
        x: Float[Tensor, "m p"] | Array | list[Any],
        samples: int = 1,
        *,
        generator: torch.Generator | int | None = None,
    ) -> Float[Tensor, "s m c"]:
        """Draws of the outputs at ``x``, jointly over its rows.

        Args:
            x: Inputs.
            samples: Draws s.
            generator: Source of randomness, or the seed of one; ``None`` draws from PyTorch's global one.

        Raises:
            ConfigError: If there is no draw.

        Cost:
            The joint covariance of all outputs, and its root.
        """
        source = probes.generator_of(generator)
        probes.check_draws(samples, source)
        return self.outputs(x, joint=True).sample(samples, generator=source)

    # ---- evidence ---------------------------------------------------------------------------------------------------

    @working("evidence")
    def log_marginal(self) -> float:
        """``log p(y | f) - ½ |u|² - ½ log |1 + Lᵀ B L|`` at the mode, nats (equation 3.32 of the same)."""
        size = float(self.mode.weights.square().sum())
        return -self.mode.nll - 0.5 * size - 0.5 * float(self._precision.logdet())

    def evidence_and_gradient(self) -> tuple[float, Float[Tensor, " h"]]:
        """See ``Tunable``."""
        return self.log_marginal(), self.gradient()

    def gradient(self) -> Float[Tensor, " h"]:
        """That of ``log_marginal`` in the kernel's ``hyper``, while the mode moves along (equations 5.22 to 5.24).

            ½ αᵀ ∂K α - ½ tr(R ∂K) + tᵀ ∂K α,   R = B - B Σ B,   t = s - B Σ s,   s = -½ ∇_f tr(Σ B(f))

        with ``α = ∇ log p(y | f)`` and ``Σ = (K⁻¹ + B)⁻¹``.

        Cost:
            A matrix ``[n c, n c]``, and its products.
        """
        sigma = self._covariance
        return self._kernel_gradient(sigma, self._slope_in_mode(sigma))

    @property
    def _covariance(self) -> Float[Tensor, "n c n c"]:
        """``Σ = (K⁻¹ + B)⁻¹``, of the outputs at the data."""
        n = len(self.data)
        features = self._features(self._root.mT).flatten(0, 1)
        return (features @ self._precision.solve(features.mT)).view(n, self.width, n, self.width)

    def _slope_in_mode(self, sigma: Float[Tensor, "n c n c"]) -> Float[Tensor, "n c"]:
        """``s = -½ ∇_f tr(Σ B(f))``: of the evidence in the outputs, of which only its determinant changes there."""
        with torch.enable_grad():
            outputs = self.fitted.clone().requires_grad_()
            own = (self._curvature(outputs) * torch.einsum("ncnd->ncd", sigma)).sum()
            return -0.5 * torch.autograd.grad(own, outputs)[0]

    def _kernel_gradient(self, sigma: Float[Tensor, "n c n c"], s: Float[Tensor, "n c"]) -> Float[Tensor, " h"]:
        """See ``gradient``."""
        alpha = self.likelihood.score(self.fitted, self._targets)
        b = self._curvature(self.fitted)
        t = s - torch.einsum("ncd,nd->nc", b, torch.einsum("ncmd,md->nc", sigma, s))
        rest = torch.einsum("ncd,ndme,mec->nm", b, sigma, b)
        rest.diagonal().sub_(b.diagonal(dim1=1, dim2=2).sum(1))
        weight = 0.5 * (alpha @ alpha.mT + rest) + 0.5 * (t @ alpha.mT + alpha @ t.mT)
        return weighted_gradient(KernelMatrix(self.kernel, self._exact.inputs), lambda i, j: weight[i, j])

    # ---- hyper-parameters -------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def log_hyperparameters(self) -> Float[Tensor, " h"]:
        """See ``Tunable``."""

    @abc.abstractmethod
    def hyperparameter_names(self) -> list[str]:
        """See ``Tunable``."""

    @abc.abstractmethod
    def least_noise(self) -> LeastNoise:
        """See ``Tunable``."""

    @abc.abstractmethod
    def with_log_hyperparameters(self: L, logs: Float[Tensor, " h"]) -> L:
        """See ``Tunable``."""

    def with_trace(self: L, trace: tuple[GPStep, ...]) -> L:
        """See ``Tunable``."""
        return replace(self, trace=trace)

    def tuned(self: L, method: Any, progress: bool | None) -> L:
        """See ``lapwing.tune``."""
        if not len(self.log_hyperparameters()):
            raise UnsupportedError("a kernel with hyper-parameters to choose", f"{self.kernel!r:.60}", "1.0 * kernel")
        if method is None:
            method = usual_method(len(self.data), self.width)
        check_kind("the method", method, (Evidence, Subset), "lw.tune(posterior): the evidence needs no data held out")
        return method.tune(self, progress)

    # ---- other data and devices -------------------------------------------------------------------------------------

    def updated(self: L, data: Source) -> L:
        """The posterior with more data.

        Args:
            data: More inputs and targets.
        """
        both = self.data.joined(Observations.of(data))
        return self.of(self.kernel, self.likelihood, both).with_trace(self.trace)

    def select(self: L, index: Index) -> L:
        """The posterior of some of the observations, in float64.

        Args:
            index: Which.
        """
        return replace(self, data=self.data.select(index), start=None)

    def first(self: L, size: int) -> L:
        """The posterior of so many observations, the first; see ``select``."""
        return self.select(slice(size))

    def with_mode(self: L, mode: Mode) -> L:
        """The posterior whose mode was found before.

        Args:
            mode: Of ``u``.
        """
        found = replace(self)
        found.found.mode = mode
        return found

    def to(self: L, device: torch.device | str) -> L:
        """The posterior on another device; its mode is looked for near the one that is known.

        Args:
            device: Where to.
        """
        near = self._near()
        return replace(self, data=self.data.to(device), start=None if near is None else moved(near, device))

    def _near(self) -> Float[Tensor, "n c"] | None:
        """Outputs at the data near which a mode is."""
        return self.start if self.found.mode is None else self.fitted

    def __getstate__(self) -> dict[str, Any]:
        """What pickle holds: where the mode is, and no factor."""
        return fields_of(self) | {"start": self._near()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The same posterior, whose mode is looked for near where it was."""
        self.__init__(**state)


def usual_method(rows: int, width: int, most: int = SMALL) -> Evidence | Subset:
    """By which hyper-parameters are chosen: the evidence of all rows, or of a part of many.

    Args:
        rows: Rows of data.
        width: Functions of a row.
        most: Values of functions that the evidence of all is taken of.
    """
    if rows * width <= most:
        return Evidence()
    return Subset(max(2, most // width))
