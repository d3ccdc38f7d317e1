"""The posterior of a Gaussian process regression: mean, what is not known, functions drawn from it, evidence."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.gp.kernels.base import Index, Kernel, Kernels, check_differentiable, check_recorded, each_of
from lapwing.gp.kernels.matrix import check_room, cross_product
from lapwing.gp.observations import Observations
from lapwing.gp.regression.covariance import independent
from lapwing.gp.regression.evidence import estimated_gradient, evidence_and_gradient, log_evidence
from lapwing.gp.regression.functions import FunctionSamples, PriorFunctions, exact_law_at
from lapwing.gp.regression.settings import EXACT, Settings
from lapwing.gp.regression.system import System
from lapwing.gp.trend import least_squares
from lapwing.gp.tuning import Centroids, Evidence, GPStep, Pathwise, Subset
from lapwing.gp.tuning.tunable import LeastNoise
from lapwing.ground import probes
from lapwing.ground.data.inputs import Array
from lapwing.ground.data.sources import Source
from lapwing.ground.errors import DataError, UnsupportedError, check_count, check_kind
from lapwing.ground.precision import wide
from lapwing.ground.progress import working
from lapwing.ground.results import Estimate, Solution, parted
from lapwing.ground.shared import fields_of
from lapwing.jacobian.live import live
from lapwing.likelihoods import Gaussian
from lapwing.linalg import Dense
from lapwing.linear.solvers import Cholesky, Solver
from lapwing.posteriors.capabilities import TargetDeviations
from lapwing.posteriors.predictive_module import predictive_module, quantities_asked
from lapwing.predictive import Draws, JointMoments, Outputs, Predictive

SMALL = 2_000
"""Distinct inputs up to which tuning climbs the evidence of all, unless it is told another way, and up to which
functions are drawn with the exact law of the prior at the data."""

POINTS = 200
"""Training inputs at which draws are looked at, unless others are given."""

ROUNDING = 10.0
"""The noise variance stays above so many times the rounding of the dtype, over what the mean leaves of the targets."""


@final
class Solves:
    """What a posterior has been solved for: each is found when it is first asked for, once, and stays.

    Args:
        solution: ``C⁻¹ [y, H]``, H once for each group of outputs.
        functions: The draws from which variances are read.
    """

    def __init__(self, solution: Solution | None = None, functions: FunctionSamples | None = None) -> None:
        self.solution = solution
        self.functions = functions
        self.lock = threading.RLock()


@final
@dataclass(frozen=True, eq=False, repr=False)
class GPPosterior:
    """The posterior of a Gaussian process under Gaussian noise; given the data, its outputs are independent.

        y = H β + f + ε,   C = K + N,   α = C⁻¹ (y - H β)                       (Antorán 2024, section 2.2)

    Args:
        kernel: k, or one an output.
        likelihood: p(y | f).
        data: X and y; solves are on distinct inputs, see ``Observations.distinct``.
        settings: Mean and solver.
        start: Solutions to start from, for as many observations or fewer.
        trace: Steps of tuning.
    """

    kernel: Kernels
    likelihood: Gaussian
    data: Observations
    settings: Settings
    start: tuple[Solution, ...] = ()
    trace: tuple[GPStep, ...] = ()
    solves: Solves = field(init=False, default_factory=Solves)

    def __repr__(self) -> str:
        n, p = self.data.inputs.shape
        return f"GPPosterior({self.kernel}, {self.likelihood}, {n} observations in {p} dimensions)"

    # ---- the linear system ------------------------------------------------------------------------------------------

    @cached_property
    def system(self) -> System:
        """``C = K + N`` at the distinct inputs."""
        return System(self.kernel, self.likelihood, self.data, self.settings)

    @property
    def distinct(self) -> Observations:
        """What is solved for: n distinct inputs, with the averages of their targets."""
        return self.data.distinct

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """That of each output."""
        return self.system.kernels

    @property
    def noises(self) -> Float[Tensor, " c"]:
        """``1/ρ`` of each output, float64."""
        return self.system.noises

    @property
    def solver(self) -> Solver:
        """What solves."""
        return self.system.solver

    @property
    def solution(self) -> Solution:
        """``C⁻¹ [y, H]``, H once for each group of outputs.

        Found with the functions, all columns in one solve, where those are asked for first.
        """
        with self.solves.lock:
            if self.solves.solution is None:
                none = self.distinct.targets[:, :0]
                self.solves.solution = self.system.solve(none, none, with_mean=True, start=self.start)
            return self.solves.solution

    @cached_property
    def representers(self) -> tuple[Float[Tensor, "n c"], Float[Tensor, "q c"]]:
        """α and β of the posterior mean ``h(·) β + K_{(·)X} α``."""
        solution = self.solution
        return self.system.fitted(solution.value[:, : self.data.outputs], solution)

    # ---- predictions ------------------------------------------------------------------------------------------------

    @working("predict")
    def mean(self, x: Float[Tensor, "m p"] | Array | list[Any]) -> Float[Tensor, "m c"]:
        """The posterior mean ``h(x) β + K_{xX} α``; differentiable in x.

        Args:
            x: Inputs.
        """
        alpha, beta = self.representers
        new = self.data.check(x)
        exact = new.to(alpha)
        explained = cross_product(self.kernel, exact, self.distinct.inputs.to(alpha), alpha)
        return (self.system.trend(exact) @ beta + explained).to(new)

    @working("predict")
    def predict(
        self,
        x: Float[Tensor, "m p"] | Array | list[Any],
        *,
        joint: bool = False,
        generator: torch.Generator | int | None = None,
    ) -> Predictive:
        """The distribution of targets at some inputs, the noise included.

        Args:
            x: Inputs.
            joint: Whether to return the covariance between them too.
            generator: Where the solver is not exact, the source of randomness of the functions from which variances
                are read, or the seed of one; ``None`` reads those drawn once by the seed of the recipe.

        Returns:
            ``Regression`` with ``mean``, ``std`` and ``outputs``, the function without noise.

        Raises:
            DataError: If there are no inputs, or they are not finite.
            ShapeError: If they have another shape.

        Cost:
            ``m`` rows of the kernel; by Cholesky's method ``n²`` multiplications for each, else an evaluation of the
            functions from which variances are read, which the first prediction draws.
        """
        return self.likelihood.predictive(self.outputs(x, joint=joint, generator=generator))

    @working("predict")
    def outputs(
        self,
        x: Float[Tensor, "m p"] | Array | list[Any],
        *,
        joint: bool = False,
        generator: torch.Generator | int | None = None,
    ) -> Outputs:
        """What is known of the function; exact where the solver is, else with variances from functions drawn once.

        Where ``x`` asks for its gradient, all of it can be differentiated in ``x``.

        Args:
            x: Inputs.
            joint: Whether of all inputs together.
            generator: See ``predict``.
        """
        _ = probes.generator_of(generator)  # refuses what is none
        x = self.data.check(x)
        c = self.data.outputs
        shape = (len(x) * c,) * 2 if joint else (len(x), c, c)
        check_room("covariances of outputs", shape, x, "fewer inputs at a time, or mean(x)")
        if live(x):
            check_differentiable(self.kernel, drawn=not self.solver.exact)
        with torch.set_grad_enabled(live(x)):
            if self.solver.exact:
                if joint:
                    return JointMoments(self.mean(x), self.joint_covariance(x))
                return independent(self.mean(x), self._variance(x))
            samples = self.settings.samples
            functions = self.functions if generator is None else self.draw_functions(samples, generator=generator)
            drawn = functions(x)
            mean = self.mean(x)
            return Draws(drawn) if joint else independent(mean, self._variance_of_draws(drawn, mean))

    @working("module")
    def module(
        self,
        outputs: Sequence[str] | None = None,
        example: Float[Tensor, "m p"] | Array | list[Any] | None = None,
    ) -> nn.Module:
        """What is predicted as a module of plain PyTorch, for any number of inputs; see ``Posterior.module``.

        Args:
            outputs: Of ``"mean"``, ``"std"``, ``"variance"`` and ``"covariance"``, of targets and with their noise,
                those with ``"outputs_"`` before, of the function, ``"uncertainty"`` and ``"epistemic"`` those wanted;
                ``None`` for ``("mean", "std")``.
            example: Some inputs, for their dtype; ``None`` for those of the data.

        Returns:
            A module that takes inputs ``[m, p]`` and returns a dict of tensors.

        Raises:
            UnsupportedError: If the kernel cannot be recorded, or the solver is not exact.

        Cost:
            The inverse of a Cholesky factor, once: ``n²`` numbers. A call takes ``n²`` multiplications an input.

        Example:
            >>> import lapwing as lw
            >>> x = torch.linspace(0, 6, 20)[:, None]
            >>> posterior = lw.GP(lw.gp.RBF(), lw.Gaussian(100.0)).fit((x, x.sin()))
            >>> sorted(posterior.module()(x[:3]))
            ['mean', 'std']
        """
        for kernel in self.kernels:
            check_recorded(kernel)
        if not self.solver.exact:
            hint = "with_solver(lw.solvers.Cholesky())"
            raise UnsupportedError("variances by exact solves, to be recorded", f"{self.solver}", hint)
        x = self.data.check(self.data.inputs[:2] if example is None else example)
        names = quantities_asked(outputs, labels=False)
        variances = [each.plain for each in self.system.covariances(self.solution)]
        alpha, beta = self.representers
        observed = self.distinct.inputs.to(alpha)

        def predicted(new: Float[Tensor, "m p"]) -> Predictive:
            at = new.to(alpha)
            each = [kernel(at, observed) @ alpha[:, output] for output, kernel in enumerate(self.kernels)]
            mean = self.system.trend(at) @ beta + torch.stack(each, 1)
            columns: dict[int, Tensor] = {}
            for group, variance in zip(self.system.groups, variances, strict=True):
                own = variance(new.to(variance.inputs))
                columns.update((output, own) for output in group.outputs)
            found = torch.stack([columns[output] for output in range(self.data.outputs)], 1)
            return self.likelihood.predictive(independent(mean.to(new), found.to(new)))

        with torch.no_grad():
            return predictive_module(predicted, x, names)

    def joint_covariance(self, x: Float[Tensor, "m p"]) -> Float[Tensor, "m c m c"]:
        """What is not known of the function at all inputs together, by exact solves.

        Args:
            x: Inputs.
        """
        c = self.data.outputs
        found = torch.zeros(len(x), c, len(x), c, dtype=x.dtype, device=x.device)
        for group, covariance in zip(self.system.groups, self.system.covariances(self.solution), strict=True):
            joint = covariance.joint(x)
            for output in group.outputs:
                found[:, output, :, output] = joint
        return found

    def _variance(self, x: Float[Tensor, "m p"]) -> Float[Tensor, "m c"]:
        """By exact solves."""
        found = torch.empty(len(x), self.data.outputs, dtype=x.dtype, device=x.device)
        for group, covariance in zip(self.system.groups, self.system.covariances(self.solution), strict=True):
            found[:, group.outputs] = covariance.variance(x)[:, None]
        return found

    def _variance_of_draws(self, drawn: Float[Tensor, "s m c"], mean: Float[Tensor, "m c"]) -> Float[Tensor, "m c"]:
        """Of functions drawn around the mean; outputs of one group are draws of the same."""
        squares = (drawn - mean).square()
        found = torch.empty_like(mean)
        for group in self.system.groups:
            found[:, group.outputs] = squares[..., group.outputs].mean((0, 2))[:, None]
        return found

    # ---- functions drawn from it ------------------------------------------------------------------------------------

    @property
    def functions(self) -> FunctionSamples:
        """The draws from which variances are read, by the seed of the recipe."""
        with self.solves.lock:
            if self.solves.functions is None:
                self.solves.functions = self.draw_functions(self.settings.samples, generator=self.settings.seed)
            return self.solves.functions

    @working("sample functions")
    def sample_functions(
        self,
        x: Float[Tensor, "m p"] | Array | list[Any],
        samples: int = 1,
        *,
        generator: torch.Generator | int | None = None,
    ) -> Float[Tensor, "s m c"]:
        """Draws of the function at ``x``, jointly over its rows; the gradient in them is kept.

        Args:
            x: Inputs.
            samples: Draws s.
            generator: Source of randomness, or the seed of one: the same seed draws the same functions at all inputs.
                ``None`` draws from PyTorch's global one.

        Cost:
            That of ``draw_functions``, whose functions can be called again elsewhere.
        """
        return self.draw_functions(samples, generator=generator)(x)

    @working("sample functions")
    def draw_functions(self, samples: int = 1, *, generator: torch.Generator | int | None = None) -> FunctionSamples:
        """Functions drawn from the posterior, which can be called anywhere (Antorán 2024, equation 2.29).

        Args:
            samples: How many.
            generator: As for ``sample_functions``.

        Cost:
            A solve for each, all at once, with that of the mean where it was not asked for before.

        Raises:
            TooLargeError: If their coefficients would take more than 2 GiB.
        """
        check_count("samples", samples)
        n = len(self.distinct)
        c = self.data.outputs
        x = self.system.inputs
        features = self.settings.features_for(n, samples, c)
        check_room("functions", (n + features, samples, c), x, "fewer samples=, or outputs")
        source = torch.Generator().manual_seed(probes.seed_from(generator))
        with torch.no_grad():
            prior = PriorFunctions.drawn(self.kernel, x, samples * c, features, source)
            noise = probes.gaussian([n, samples * c], like=x, generator=source)
            for group in self.system.groups:
                noise[:, group.columns(samples * c, c)] *= group.noise.sqrt()[:, None]
            values = prior(x)
            exact = torch.zeros_like(values)
            if n <= SMALL:
                exact, values = exact_law_at(self.kernel, x, values, source)
            solution = self._solved_draws(values, noise)
            alpha, beta = self.representers
            drawn_alpha, drawn_beta = self.system.fitted(solution.value, self.solution)
        representers = alpha.repeat(1, samples) + exact.to(alpha) - drawn_alpha
        slopes = beta.repeat(1, samples) - drawn_beta
        trend = self.system.trend
        return FunctionSamples(self.kernel, self.distinct.inputs, trend, prior, representers, slopes, c, solution)

    def target_deviations(
        self,
        samples: int,
        inputs: Float[Tensor, "m p"] | None = None,
        *,
        generator: torch.Generator | int | None = None,
    ) -> TargetDeviations:
        """See ``DrawsTargets``; the noise is included."""
        exact = self.with_solver(Cholesky()) if len(self.data) <= EXACT else self
        x = self.data.inputs[:POINTS] if inputs is None else self.data.check(inputs)
        source = probes.generator_of(generator)
        with torch.no_grad():
            drawn = self.sample_functions(x, samples, generator=source)
            noise = probes.gaussian(list(drawn.shape), like=drawn, generator=source) * self.noises.sqrt().to(drawn)
            away = wide(drawn + noise - exact.mean(x)).flatten(1)
            covariance = wide(exact.joint_covariance(x)).flatten(2).flatten(0, 1)
            covariance.diagonal().add_(self.noises.repeat(len(x)))
        return TargetDeviations(away, Dense(torch.linalg.inv(covariance)))

    def _solved_draws(self, values: Float[Tensor, "n k"], noise: Float[Tensor, "n k"]) -> Solution:
        """``C⁻¹ (f(X) + ε)``, in one solve with ``C⁻¹ [y, H]`` where that has not been asked for."""
        with self.solves.lock:
            with_mean = self.solves.solution is None
            found = self.system.solve(values, noise, with_mean=with_mean, start=self.start)
            if with_mean:
                self.solves.solution, found = parted(found, found.value.shape[1] - values.shape[1])
            return found

    # ---- evidence ---------------------------------------------------------------------------------------------------

    @working("evidence")
    def log_marginal(self) -> float | Estimate:
        """Log evidence log p(y), nats, at the β of most likelihood (Antorán 2024, equation 2.43).

        An ``Estimate`` by stochastic Lanczos quadrature where the solver is not exact.
        """
        alpha, beta = self.representers
        return log_evidence(self.system, alpha, beta, self.settings.seed)

    def evidence_and_gradient(self) -> tuple[float, Float[Tensor, " h"]]:
        """See ``Tunable``."""
        return evidence_and_gradient(self.system)

    def estimated_gradient(self) -> Float[Tensor, " h"]:
        """See ``TunableByDraws``."""
        solution = self.functions.solution
        if solution.stopped == "interrupted":  # Ctrl-C ended the solve, and is to end the steps with it
            raise KeyboardInterrupt
        return estimated_gradient(self.system, self.representers[0], solution.value)

    # ---- hyper-parameters -------------------------------------------------------------------------------------------

    def log_hyperparameters(self) -> Float[Tensor, " h"]:
        """See ``Tunable``."""
        noises = [-math.log(precision) for precision in self._precisions]
        kernels = [kernel.hyper for kernel in each_of(self.kernel)]
        return torch.cat([*kernels, torch.tensor(noises, dtype=torch.float64)])

    def hyperparameter_names(self) -> list[str]:
        """See ``Tunable``; where there is one an output, with the number of the output."""
        kernels = each_of(self.kernel)
        if isinstance(self.kernel, tuple):
            names = [f"kernel[{i}].{label}" for i, kernel in enumerate(kernels) for label in kernel.labels()]
        else:
            names = kernels[0].labels()
        noises = len(self._precisions)
        if noises > 1:
            return names + [f"noise variance[{i}]" for i in range(noises)]
        return [*names, "noise variance"]

    def least_noise(self) -> LeastNoise:
        """See ``Tunable``; from what the mean leaves of the targets."""
        basis = self.system.trend(wide(self.data.inputs))
        rest, _ = least_squares(basis, basis, wide(self.data.targets))
        dtype = self.system.dtype
        least = ROUNDING * torch.finfo(dtype).eps * rest.square().mean(0).cpu()
        noise_each = isinstance(self.likelihood.precision, tuple)
        return LeastNoise(least if noise_each else least.mean()[None], dtype)

    @property
    def _precisions(self) -> tuple[float, ...]:
        """The noise precisions that are chosen: one for all outputs, or one an output."""
        precision = self.likelihood.precision
        return precision if isinstance(precision, tuple) else (precision,)

    def with_log_hyperparameters(self, logs: Float[Tensor, " h"]) -> GPPosterior:
        """See ``Tunable``."""
        before = each_of(self.kernel)
        sizes = [len(kernel.hyper) for kernel in before]
        *parts, noises = logs.split([*sizes, len(logs) - sum(sizes)])
        kernels = tuple(kernel.with_hyper(part) for kernel, part in zip(before, parts, strict=True))
        precisions = tuple((-noises).exp().tolist())
        noise_each = isinstance(self.likelihood.precision, tuple)
        return self.with_hyperparameters(
            kernels if isinstance(self.kernel, tuple) else kernels[0],
            replace(self.likelihood, precision=precisions if noise_each else precisions[0]),
        )

    def with_hyperparameters(self, kernel: Kernels, likelihood: Gaussian) -> GPPosterior:
        """The posterior with another kernel and noise; solves start from those that are known."""
        return replace(self, kernel=kernel, likelihood=likelihood, start=self.solutions())

    def with_trace(self, trace: tuple[GPStep, ...]) -> GPPosterior:
        """See ``Tunable``."""
        return replace(self, trace=trace)

    def tuned(self, method: Any, progress: bool | None) -> GPPosterior:
        """See ``lapwing.tune``."""
        if len(self.data) < 2:
            raise DataError("at least two observations to tune by", "one", "predictions with the choices as they are")
        if method is None:
            method = Evidence() if len(self.distinct) <= SMALL else Subset()
        kinds = (Evidence, Pathwise, Subset, Centroids)
        check_kind("the method", method, kinds, "lw.tune(posterior): the evidence needs no data held out")
        return method.tune(self, progress)

    # ---- other data, solvers and devices ----------------------------------------------------------------------------

    def updated(self, data: Source, *, relative_noise: Float[Tensor, " n"] | None = None) -> GPPosterior:
        """The posterior with more data; solves start from those that are known.

        Args:
            data: More inputs and targets.
            relative_noise: As in ``GP.fit``.
        """
        return replace(self, data=self.data.joined(Observations.of(data, relative_noise)), start=self.solutions())

    def select(self, index: Index) -> GPPosterior:
        """The posterior of some of the observations, in float64.

        Args:
            index: Which.
        """
        return replace(self, data=self.data.select(index), settings=replace(self.settings, dtype=None), start=())

    def first(self, size: int) -> GPPosterior:
        """That of the first observations without copies, until they have so many distinct inputs; see ``select``."""
        data = self.data.without_copies
        part = slice(data.reach(size))
        return replace(self, data=data.select(part), settings=replace(self.settings, dtype=None), start=())

    def with_solver(self, solver: Solver) -> GPPosterior:
        """The posterior by another solver, or more steps of the same: it starts from what is known."""
        if solver == self.settings.solver and all(each.converged for each in self.solutions()):
            return self
        return replace(self, settings=replace(self.settings, solver=solver), start=self.solutions())

    def with_solves(self, solution: Solution, functions: FunctionSamples | None = None) -> GPPosterior:
        """The posterior with what it was solved for before.

        Args:
            solution: ``C⁻¹ [y, H]``.
            functions: Draws by the seed of the recipe; ``None`` where there were none.
        """
        found = replace(self)
        found.solves.solution = solution
        found.solves.functions = functions
        return found

    def to(self, device: torch.device | str) -> GPPosterior:
        """The posterior on another device, with what it was solved for.

        Args:
            device: Where to.
        """
        there = replace(self, data=self.data.to(device), start=tuple(each.to(device) for each in self.start))
        solution = self.solves.solution
        functions = self.solves.functions
        if solution is None:
            return there
        return there.with_solves(solution.to(device), None if functions is None else functions.to(device))

    def solutions(self) -> tuple[Solution, ...]:
        """The solves that were made: of ``[y, H]``, and of the functions behind variances."""
        solution = self.solves.solution
        functions = self.solves.functions
        if solution is None:
            return self.start
        return (solution,) if functions is None else (solution, functions.solution)

    def __getstate__(self) -> dict[str, Any]:
        """What pickle holds: the solves, and not the functions, whose features are code."""
        return fields_of(self) | {"start": self.solutions()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The same posterior, whose solves start where those that were held ended."""
        self.__init__(**state)
