"""Gaussian processes of classes and counts by Laplace's approximation: the mode of a linear model."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.data.inputs import Array
from lapwing.ground.data.sources import Source
from lapwing.ground.errors import DataError, NumericalError, UnsupportedError, check_kind
from lapwing.ground.progress import working
from lapwing.likelihoods import Bernoulli, Categorical, Likelihood, Poisson
from lapwing.linalg import Dense, Diagonal
from lapwing.linear.mode.loss import Mode
from lapwing.linear.model import Matrix
from lapwing.linear.solvers import Cholesky
from lapwing.linear.tangent import Tangent
from lapwing.methods.gp.kernels import Index, Kernel
from lapwing.methods.gp.matrix import KernelMatrix, check_room, contracted, cross
from lapwing.methods.gp.observations import Observations, check_suitable
from lapwing.methods.gp.settings import Chosen
from lapwing.predictive import Moments, Predictive, predictive

JITTER = 1e-10
"""Part of the mean variance that is added to the kernel matrix, so that it has a Cholesky factor."""

RTOL = 1e-9
"""Relative gradient at which the mode is found."""

SMALL = 1_000
"""Outputs at the data up to which tuning climbs the evidence of all of them, unless it is told another way."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class LaplaceProcess:
    """A process of mean 0 under a likelihood, Gaussian around its mode (Rasmussen & Williams 2006, section 3.4).

    With ``K = L Lᵀ`` the outputs at the data are ``f = L u``, ``u ~ N(0, 1)``: a linear model, whose mode, precision
    ``1 + Lᵀ B L`` and evidence are those of the process; they are found in float64, whatever the data are in.

    Args:
        kernel: k, of each output.
        likelihood: p(y | f), such as ``Bernoulli()`` or ``Categorical()``.
        data: X and y.
        trace: Steps of tuning.
        start: Outputs at the data near which the mode is; ``None`` if nobody knows.

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
    trace: tuple[Chosen, ...] = ()
    start: Float[Tensor, "n c"] | None = None

    @classmethod
    @working("fit")
    def fit(cls, kernel: Kernel, likelihood: Likelihood, data: Source) -> LaplaceProcess:
        """The posterior; its mode is found when it is first asked for.

        Args:
            kernel: k.
            likelihood: p(y | f).
            data: Inputs ``[n, p]`` and targets, as the likelihood has them, of one axis or two.

        Raises:
            DataError: If there are no data, they are not finite, or none that the likelihood knows.
            ShapeError: If inputs or targets have other shapes, or the kernel is for other inputs.

        Warns:
            DataWarning: If the targets never vary.

        Cost:
            A dense matrix ``[n c, n c]`` for c outputs, and its factor a Newton step.
        """
        check_kind("kernel", kernel, (Kernel,), "gp.Matern(1.0), or gp.Custom(function)")
        hint = "Bernoulli(), or GP(kernel, Gaussian(precision)), which is exact"
        check_kind("likelihood", likelihood, (Bernoulli, Categorical, Poisson), hint)
        found = Observations.of(data)
        if isinstance(likelihood, Categorical) and not (
            found.outputs == 1 and bool((found.targets == found.targets.floor()).all())
        ):
            hint = "targets.argmax(-1) for one-hot labels"
            raise DataError("integer class labels [n] for Categorical", f"targets {list(found.targets.shape)}", hint)
        check_suitable(kernel, "zero", found)
        process = cls(kernel, likelihood, found)
        size = len(found), process.width
        check_room("outputs at the data", size, found.inputs, "classes numbered from 0")
        likelihood.check(found.inputs.new_zeros(1, 1).expand(size), process._targets)
        return process

    def __repr__(self) -> str:
        n, p = self.data.inputs.shape
        return f"LaplaceProcess({self.kernel}, {self.likelihood}, {n} observations in {p} dimensions)"

    @cached_property
    def mode(self) -> Mode:
        """Of ``u = L⁻¹ f``."""
        start = None if self.start is None else torch.linalg.solve_triangular(self._root, self.start, upper=False)
        initial = None if start is None else start.flatten()
        return self._model.mode(self._prior, solver=Cholesky(), initial=initial, rtol=RTOL)

    @cached_property
    def fitted(self) -> Float[Tensor, "n c"]:
        """The outputs at the data, ``L u`` at the mode, float64."""
        return self._root @ self.mode.weights.view(len(self.data), -1)

    def outputs(self, x: Float[Tensor, "m p"] | Array | list[Any]) -> Moments:
        """What is known of the outputs.

        Args:
            x: Inputs.
        """
        new = self.data.check(x)
        x = new.double()
        with torch.no_grad():
            across = torch.linalg.solve_triangular(self._root, cross(self.kernel, self._exact.inputs, x), upper=False)
            rest = (self.kernel.diagonal(x) - across.square().sum(0)).clamp_min(0.0)
            features = self._features(across)
            solved = self._precision.solve(features.flatten(0, 1).mT).mT.view_as(features)
            within = features @ solved.mT
            mean = (features @ self.mode.weights).to(new)
            return Moments(mean, within.to(new) + torch.diag_embed(rest.to(new)[:, None].expand_as(mean)))

    @working("predict")
    def predict(self, x: Float[Tensor, "m p"] | Array | list[Any]) -> Predictive:
        """The distribution of targets at some inputs.

        Args:
            x: Inputs.

        Raises:
            DataError: If there are no inputs, or they are not finite.
            ShapeError: If they have another shape.
        """
        return predictive(self.likelihood, self.outputs(x))

    @working("evidence")
    def log_marginal(self) -> float:
        """``log p(y | f) - ½ |u|² - ½ log |1 + Lᵀ B L|`` at the mode, nats (equation 3.32 of the same)."""
        size = float(self.mode.weights.square().sum())
        return -self.mode.nll - 0.5 * size - 0.5 * float(self._precision.logdet())

    def gradient(self) -> Float[Tensor, " h"]:
        """That of ``log_marginal`` in the kernel's ``hyper``, while the mode moves along (equations 5.22 to 5.24).

            ½ αᵀ ∂K α - ½ tr(R ∂K) + tᵀ ∂K α,   R = B - B Σ B,   t = s - B Σ s,   s = -½ ∇_f tr(Σ B(f))

        with ``α = ∇ log p(y | f)`` and ``Σ = (K⁻¹ + B)⁻¹``.

        Cost:
            A matrix ``[n c, n c]``, and its products.
        """
        likelihood, f, y = self.likelihood, self.fitted, self._targets
        n, c = f.shape
        alpha, b = likelihood.score(f, y), likelihood.hessian(f, y)
        features = self._features(self._root.mT).flatten(0, 1)
        sigma = (features @ self._precision.solve(features.mT)).view(n, c, n, c)
        with torch.enable_grad():
            moved = f.clone().requires_grad_()
            own = (likelihood.hessian(moved, y) * torch.einsum("ncnd->ncd", sigma)).sum()
            s = -0.5 * torch.autograd.grad(own, moved)[0]
        t = s - torch.einsum("ncd,nd->nc", b, torch.einsum("ncmd,md->nc", sigma, s))
        rest = torch.einsum("ncd,ndme,mec->nm", b, sigma, b)
        rest.diagonal().sub_(b.diagonal(dim1=1, dim2=2).sum(1))
        weight = 0.5 * (alpha @ alpha.mT + rest) + 0.5 * (t @ alpha.mT + alpha @ t.mT)
        return contracted(KernelMatrix(self.kernel, self._exact.inputs), lambda i, j: weight[i, j])

    def updated(self, data: Source) -> LaplaceProcess:
        """The posterior with more data.

        Args:
            data: More inputs and targets.
        """
        both = self.data.joined(Observations.of(data))
        return replace(self.fit(self.kernel, self.likelihood, (both.inputs, both.targets)), trace=self.trace)

    def select(self, index: Index) -> LaplaceProcess:
        """The posterior of some of the observations, in float64.

        Args:
            index: Which.
        """
        return replace(self, data=self.data.select(index), start=None)

    def first(self, size: int) -> LaplaceProcess:
        """The posterior of so many observations, the first; see ``select``."""
        return self.select(slice(size))

    def with_choices(self, kernel: Kernel) -> LaplaceProcess:
        """The posterior with another kernel; its mode is looked for near the one that is known."""
        return replace(self, kernel=kernel, start=self._found)

    def __getstate__(self) -> dict[str, Any]:
        """What pickle holds: where the mode is, and no factor."""
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"start": self._found}

    def tuned(self, method: Any, progress: bool | None) -> LaplaceProcess:
        """See ``lapwing.tune``."""
        from lapwing.methods.gp.evidence import Evidence  # it is of processes
        from lapwing.methods.gp.subsets import Subset

        if not len(self.kernel.hyper):
            raise UnsupportedError("a kernel with hyper-parameters to choose", f"{self.kernel!r:.60}", "1.0 * kernel")
        small = len(self.data) * self.width <= SMALL
        method = (Evidence() if small else Subset(max(2, SMALL // self.width))) if method is None else method
        check_kind("the method", method, (Evidence, Subset), "lw.tune(process): the evidence needs no data held out")
        return method.tune(self, progress)

    @property
    def _found(self) -> Float[Tensor, "n c"] | None:
        """Outputs at the data near which a mode is."""
        return self.fitted if "mode" in vars(self) else self.start

    @cached_property
    def _exact(self) -> Observations:
        return self.data.select(slice(None))

    @cached_property
    def _root(self) -> Float[Tensor, "n n"]:
        matrix = KernelMatrix(self.kernel, self._exact.inputs).dense()
        matrix.diagonal().add_(JITTER * matrix.diagonal().mean())
        lower, failed = torch.linalg.cholesky_ex(matrix)
        if bool(failed):
            hint = (
                "fewer inputs that are nearly alike, or for Custom a function that is symmetric and positive definite"
            )
            raise NumericalError("a kernel whose matrix is positive definite", "one that is not", hint)
        return lower

    @property
    def width(self) -> int:
        """Outputs c: one a class, or one a target."""
        classes = isinstance(self.likelihood, Categorical)
        return max(2, int(self.data.targets.max()) + 1) if classes else self.data.outputs

    @property
    def _targets(self) -> Float[Tensor, "n c"] | Int[Tensor, " n"]:
        return self._exact.targets[:, 0].long() if isinstance(self.likelihood, Categorical) else self._exact.targets

    @property
    def _prior(self) -> Diagonal:
        return Diagonal(self._exact.inputs.new_ones(len(self.data) * self.width))

    @cached_property
    def _model(self) -> Tangent:
        return Tangent(Matrix(self._features(self._root.mT), self._targets, self.likelihood))

    @cached_property
    def _precision(self) -> Dense:
        return Dense(self._model.problem(self.mode.weights, self._prior).precision.dense())

    def _features(self, across: Float[Tensor, "n m"]) -> Float[Tensor, "m c d"]:
        """``aᵀ ⊗ 1`` of each column a: every output has a u of its own."""
        c, (n, m) = self.width, across.shape
        check_room("features of all outputs", (m, c, n * c), across, "fewer observations")
        return torch.einsum("nm,cd->mcnd", across, torch.eye(c).to(across)).flatten(2)
