"""The posterior of a Gaussian process: its mean, what it does not know, functions drawn from it, its evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data import Array, Source
from lapwing.ground.errors import DataError, NumericalError, check_count, check_kind
from lapwing.ground.results import Estimate, Solution, parted
from lapwing.likelihoods import Gaussian
from lapwing.linalg import Diagonal
from lapwing.linalg.functions import log_determinant
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import Cholesky, Solver
from lapwing.methods.gp.covariance import Covariance, apart
from lapwing.methods.gp.kernels import Index, Kernel
from lapwing.methods.gp.matrix import KernelMatrix, check_room, cross_product
from lapwing.methods.gp.observations import Observations
from lapwing.methods.gp.paths import FunctionSamples, PriorFunctions
from lapwing.methods.gp.settings import Chosen, Settings, check_solved, singular
from lapwing.methods.gp.trend import Trend, least_squares
from lapwing.predictive import Draws, JointMoments, Outputs, Predictive, predictive

SMALL = 2_000
"""Observations up to which tuning climbs the evidence of all of them, unless it is told another way."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class Process:
    """The posterior of a Gaussian process.

    Args:
        kernel: k.
        likelihood: p(y | f).
        data: X and y; solves are on distinct inputs, see ``Observations.distinct``.
        settings: Mean and solver.
        start: Solutions to start from, for as many observations or fewer.
        trace: Steps of tuning.
    """

    kernel: Kernel
    likelihood: Gaussian
    data: Observations
    settings: Settings
    start: tuple[Solution, ...] = ()
    trace: tuple[Chosen, ...] = ()

    def __repr__(self) -> str:
        n, p = self.data.inputs.shape
        return f"Process({self.kernel}, {self.likelihood}, {n} observations in {p} dimensions)"

    @property
    def seen(self) -> Observations:
        """What is solved for: n distinct inputs, with the averages of their targets."""
        return self.data.distinct

    @property
    def solver(self) -> Solver:
        """What solves."""
        return self.settings.solver_for(len(self.seen))

    @property
    def noise_variance(self) -> Float[Tensor, " n"]:
        """Noise variance at each distinct input."""
        return self.seen.relative / self.likelihood.noise

    @cached_property
    def problem(self) -> Problem:
        """``K + N``; in float64 where solves are exact."""
        x, noise = self.seen.inputs, self.noise_variance
        if isinstance(self.solver, Cholesky):
            x, noise = x.double(), noise.double()
        return Problem(KernelMatrix(self.kernel, x), Diagonal(noise))

    @cached_property
    def answers(self) -> Solution:
        """``(K + N)⁻¹ [y, H]``; found with the functions, all columns in one solve, where those are asked for first."""
        none = self.seen.targets[:, :0]
        return self._solved(none, none, asked=True)

    @cached_property
    def representers(self) -> tuple[Float[Tensor, "n c"], Float[Tensor, "q c"]]:
        """α and β of the posterior mean ``h(·) β + K_{(·)X} α``."""
        return self._fitted(self.answers.value[:, : self.data.outputs])

    @property
    def trend(self) -> Trend:
        """What the mean is before data."""
        return Trend(self.settings.mean)

    def mean(self, x: Float[Tensor, "m p"] | Array | list[Any]) -> Float[Tensor, "m c"]:
        """The posterior mean; differentiable in x.

        Args:
            x: Inputs.
        """
        (alpha, beta), new = self.representers, self.data.check(x)
        exact = new.to(alpha)
        return (self.trend(exact) @ beta + cross_product(self.kernel, exact, self.seen.inputs.to(alpha), alpha)).to(new)

    @property
    def covariance(self) -> Covariance:
        """What is not known of the function, by exact solves."""
        inputs = self.seen.inputs.to(self.problem.prior.values)
        solved = self.answers.value[:, self.data.outputs :]
        return Covariance(self.kernel, inputs, self.trend, solved, self.problem, self.solver)

    @cached_property
    def functions(self) -> FunctionSamples:
        """The draws from which variances are read."""
        return self.sample_functions(self.settings.samples)

    def sample_functions(self, samples: int = 1, *, seed: int | None = None) -> FunctionSamples:
        """Functions drawn from the posterior, which can be called anywhere.

        Args:
            samples: How many.
            seed: Of the draws; ``None`` for that of the recipe.

        Cost:
            A solve for each, all at once, with that of the mean where it was not asked for before.

        Raises:
            TooLargeError: If their coefficients would take more than 2 GiB.
        """
        check_count("samples", samples)
        x, c = self.seen.inputs, self.data.outputs
        check_room("functions", (len(x) + self.settings.features, samples, c), x, "fewer samples=, or outputs")
        seed = self.settings.seed if seed is None else seed
        with torch.no_grad():
            generator = torch.Generator().manual_seed(seed)
            prior = PriorFunctions.drawn(self.kernel, x, samples * c, self.settings.features, generator)
            noise = probes.gaussian([len(x), samples * c], like=x, generator=generator)
            values, noise = prior(x), self.noise_variance.sqrt()[:, None] * noise
            asked = "answers" not in vars(self)
            solution = self._solved(values, noise, asked=asked)
            if asked:
                vars(self)["answers"], solution = parted(solution, solution.value.shape[1] - samples * c)
            (alpha, beta), (shift, slope) = self.representers, self._fitted(solution.value)
        weights = (alpha.repeat(1, samples) - shift).to(x), (beta.repeat(1, samples) - slope).to(x)
        return FunctionSamples(self.kernel, x, self.trend, prior, *weights, c, solution)

    def predict(self, x: Float[Tensor, "m p"] | Array | list[Any], *, joint: bool = False) -> Predictive:
        """The distribution of targets at some inputs, the noise included.

        Args:
            x: Inputs.
            joint: Whether to return the covariance between them too.

        Returns:
            ``Regression`` with ``mean``, ``std`` and ``outputs``, the function without noise.

        Raises:
            DataError: If there are no inputs, or they are not finite.
            ShapeError: If they have another shape.

        Cost:
            ``m`` rows of the kernel; by Cholesky's method ``n²`` multiplications for each, else an evaluation of the
            functions from which variances are read, which the first prediction draws.
        """
        return predictive(self.likelihood, self.outputs(x, joint=joint))

    def outputs(self, x: Float[Tensor, "m p"] | Array | list[Any], *, joint: bool = False) -> Outputs:
        """What is known of the function; exact where the solver is, else with variances from functions drawn once.

        Args:
            x: Inputs.
            joint: Whether of all inputs together.
        """
        x, c = self.data.check(x), self.data.outputs
        covariance = (len(x) * c,) * 2 if joint else (len(x), c, c)
        check_room("covariances of outputs", covariance, x, "fewer inputs at a time, or mean(x)")
        with torch.no_grad():
            if not isinstance(self.solver, Cholesky):
                drawn, mean = self.functions(x), self.mean(x)
                return Draws(drawn) if joint else apart(mean, (drawn - mean).square().mean((0, 2)))
            mean = self.mean(x)
            if joint:
                same = torch.eye(c).to(mean)
                return JointMoments(mean, torch.einsum("mn,cd->mcnd", self.covariance.joint(x), same))
            return apart(mean, self.covariance.variance(x))

    def log_marginal(self) -> float | Estimate:
        """Log evidence log p(y), nats, at the β of most likelihood (Antorán 2024, equation 2.43).

        An ``Estimate`` by stochastic Lanczos quadrature where the solver is not exact.
        """
        if isinstance(self.solver, Cholesky):
            logdet = 2.0 * float(self.solver.factor(self.problem).diagonal().log().sum())
            return self.log_density(*self.representers, logdet)
        found = log_determinant(
            self.problem.precision,
            preconditioner=self.solver.prepared(self.problem),
            generator=torch.Generator().manual_seed(self.settings.seed),
        )
        value = self.log_density(*self.representers, found.value)
        return Estimate(value, 0.5 * self.data.outputs * found.stderr, found.samples)

    def log_density(self, alpha: Float[Tensor, "n c"], beta: Float[Tensor, "q c"], logdet: float) -> float:
        """Log evidence, nats, from α, β and ``log |K + N|``."""
        n, c = self.seen.targets.shape
        rest = self.seen.targets - self.trend(self.seen.inputs.to(beta)) @ beta
        fit = float((rest * alpha).double().sum()) + c * (logdet + n * math.log(2 * math.pi))
        return self.data.repeated(1 / self.likelihood.noise)[0] - 0.5 * fit

    def updated(self, data: Source, *, relative_noise: Float[Tensor, " n"] | None = None) -> Process:
        """The posterior with more data; solves start from those that are known.

        Args:
            data: More inputs and targets.
            relative_noise: As in ``GP.fit``.
        """
        return replace(self, data=self.data.joined(Observations.of(data, relative_noise)), start=self._known())

    def select(self, index: Index) -> Process:
        """The posterior of some of the observations, in float64.

        Args:
            index: Which.
        """
        return replace(self, data=self.data.select(index), start=())

    def first(self, size: int) -> Process:
        """That of the first observations without copies, until they have so many distinct inputs; see ``select``."""
        data = self.data.without_copies
        return replace(self, data=data.select(slice(data.reach(size))), start=())

    def tuned(self, method: Any, progress: bool) -> Process:
        """See ``lapwing.tune``."""
        if len(self.data) < 2:
            raise DataError("at least two observations to tune by", "one", "predictions with the choices as they are")
        from lapwing.methods.gp.evidence import Evidence  # they are of processes
        from lapwing.methods.gp.pathwise import Pathwise
        from lapwing.methods.gp.subsets import Centroids, Subset

        method = (Evidence() if len(self.seen) <= SMALL else Subset()) if method is None else method
        kinds = (Evidence, Pathwise, Subset, Centroids)
        check_kind("the method", method, kinds, "lw.tune(process): the evidence needs no data held out")
        return method.tune(self, progress)

    def with_choices(self, kernel: Kernel, likelihood: Gaussian) -> Process:
        """The posterior with another kernel and noise; solves start from those that are known."""
        return replace(self, kernel=kernel, likelihood=likelihood, start=self._known())

    def with_solver(self, solver: Solver) -> Process:
        """The posterior by another solver, or more steps of the same: it starts from what is known."""
        if solver == self.settings.solver and all(each.converged for each in self._known()):
            return self
        return replace(self, settings=replace(self.settings, solver=solver), start=self._known())

    def __getstate__(self) -> dict[str, Any]:
        """What pickle holds: the solves, and not the functions, whose features are code."""
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"start": self._known()}

    def _solved(self, values: Float[Tensor, "n k"], noise: Float[Tensor, "n k"], *, asked: bool) -> Solution:
        """``(K + N)⁻¹ (z + ε)`` of draws, before it that of ``[y, H]`` where asked, from where earlier solves came.

        The solve is for what H does not explain of y by ordinary least squares: tolerances are relative.
        """
        like, known = self.problem.prior.values, slice(None) if asked else slice(0)
        y, h = self.seen.targets[:, known].double(), self.trend(self.seen.inputs)[:, known].double()
        rest, explained = least_squares(h, h, y)
        explained, own, basis = explained.to(like), slice(y.shape[1]), slice(y.shape[1], y.shape[1] + h.shape[1])
        values = torch.cat([rest.to(like), h.to(like), values.to(like)], 1)
        noise = torch.cat([torch.zeros_like(values[:, : basis.stop]), noise.to(like)], 1)
        initial = torch.zeros_like(values) if self.start else None
        if initial is not None:
            for part, earlier in zip(initial.tensor_split([basis.stop], 1), self.start, strict=False):
                if earlier.value.shape[1] == part.shape[1] and len(earlier.value) <= len(part):
                    part[: len(earlier.value)] = earlier.value
            initial[:, own] -= initial[:, basis] @ explained
        try:
            solution = self.solver.drawn(self.problem, values, noise, initial=initial)
        except NumericalError as error:
            raise singular(error, self.noise_variance) from None
        check_solved(solution, self.solver.cure)
        solution.value[:, own] += solution.value[:, basis] @ explained
        return solution

    def _known(self) -> tuple[Solution, ...]:
        """The solves that were made."""
        if "functions" in vars(self):
            return (self.answers, self.functions.solution)
        return (self.answers,) if "answers" in vars(self) else self.start

    def _fitted(self, solved: Float[Tensor, "n k"]) -> tuple[Float[Tensor, "n k"], Float[Tensor, "q k"]]:
        c = self.data.outputs
        return least_squares(self.trend(self.seen.inputs.to(solved)), self.answers.value[:, c:], solved)
