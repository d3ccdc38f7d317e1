"""The posterior of a Gaussian process: its mean, what it does not know, functions drawn from it, its evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data.inputs import Array
from lapwing.ground.data.sources import Source
from lapwing.ground.errors import DataError, NumericalError, check_count, check_kind
from lapwing.ground.progress import working
from lapwing.ground.results import Estimate, Solution, joined, parted
from lapwing.likelihoods import Gaussian
from lapwing.linalg.log_determinant import log_determinant
from lapwing.linear.solvers import Cholesky, Solver
from lapwing.methods.gp.covariance import Covariance, apart
from lapwing.methods.gp.groups import Kernels, OutputGroup, grouped
from lapwing.methods.gp.kernels import Index, Kernel
from lapwing.methods.gp.matrix import check_room, cross_product
from lapwing.methods.gp.observations import Observations
from lapwing.methods.gp.paths import FunctionSamples, PriorFunctions, exact_at
from lapwing.methods.gp.settings import Chosen, Settings, check_drawn, check_solved, singular
from lapwing.methods.gp.trend import Trend, least_squares
from lapwing.predictive import Draws, JointMoments, Outputs, Predictive, predictive

SMALL = 2_000
"""Distinct inputs up to which tuning climbs the evidence of all, unless it is told another way, and up to which
functions are drawn with the exact law of the prior at the data."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class Process:
    """The posterior of a Gaussian process; given the data, its outputs are independent.

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
    trace: tuple[Chosen, ...] = ()

    def __repr__(self) -> str:
        n, p = self.data.inputs.shape
        return f"Process({self.kernel}, {self.likelihood}, {n} observations in {p} dimensions)"

    @property
    def seen(self) -> Observations:
        """What is solved for: n distinct inputs, with the averages of their targets."""
        return self.data.distinct

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """That of each output."""
        return self.kernel if isinstance(self.kernel, tuple) else (self.kernel,) * self.data.outputs

    @property
    def noises(self) -> Float[Tensor, " c"]:
        """``1/ρ`` of each output, float64."""
        return 1 / self.likelihood.precisions(self.data.targets.double())

    @property
    def alike(self) -> bool:
        """Whether all outputs have one kernel and one noise, and so one matrix to solve with."""
        return not isinstance(self.kernel, tuple) and not isinstance(self.likelihood.precision, tuple)

    @property
    def solver(self) -> Solver:
        """What solves: for as many inputs as have one matrix as large as those of all outputs together."""
        matrices = 1 if self.alike else self.data.outputs
        return self.settings.solver_for(round(len(self.seen) * matrices**0.5))

    @property
    def dtype(self) -> torch.dtype:
        """Of solves."""
        return self.settings.solved_in(self.solver)

    @cached_property
    def groups(self) -> tuple[OutputGroup, ...]:
        """Outputs with their ``K + N``: all together where they are alike, else each alone."""
        x, relative = self.seen.inputs.to(self.dtype), self.seen.relative.to(self.dtype)
        return grouped(self.kernel, self.noises.tolist(), x, relative, self.alike)

    @cached_property
    def answers(self) -> Solution:
        """``(K + N)⁻¹ [y, H]``, H once for each of the groups.

        Found with the functions, all columns in one solve, where those are asked for first.
        """
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

    @working("predict")
    def mean(self, x: Float[Tensor, "m p"] | Array | list[Any]) -> Float[Tensor, "m c"]:
        """The posterior mean; differentiable in x.

        Args:
            x: Inputs.
        """
        (alpha, beta), new = self.representers, self.data.check(x)
        exact = new.to(alpha)
        return (self.trend(exact) @ beta + cross_product(self.kernel, exact, self.seen.inputs.to(alpha), alpha)).to(new)

    @property
    def covariances(self) -> tuple[Covariance, ...]:
        """What is not known of the functions of each group of outputs, by exact solves."""
        inputs = self.seen.inputs.to(self.dtype)
        return tuple(
            Covariance(group.kernel, inputs, self.trend, self._solved_basis(number), group.problem, self.solver)
            for number, group in enumerate(self.groups)
        )

    @cached_property
    def functions(self) -> FunctionSamples:
        """The draws from which variances are read."""
        return self.sample_functions(self.settings.samples)

    @working("sample functions")
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
        n, c = len(self.seen), self.data.outputs
        x = self.seen.inputs.to(self.dtype)
        features = self.settings.features_for(n, samples, c)
        check_room("functions", (n + features, samples, c), x, "fewer samples=, or outputs")
        generator = torch.Generator().manual_seed(self.settings.seed if seed is None else seed)
        with torch.no_grad():
            prior = PriorFunctions.drawn(self.kernel, x, samples * c, features, generator)
            noise = probes.gaussian([n, samples * c], like=x, generator=generator)
            for group in self.groups:
                noise[:, group.columns(samples * c, c)] *= group.noise.sqrt()[:, None]
            values = prior(x)
            exact = torch.zeros_like(values)
            if n <= SMALL:
                exact, values = exact_at(self.kernel, x, values, generator)
            asked = "answers" not in vars(self)
            solution = self._solved(values, noise, asked=asked)
            if asked:
                vars(self)["answers"], solution = parted(solution, solution.value.shape[1] - samples * c)
            (alpha, beta), (shift, slope) = self.representers, self._fitted(solution.value)
        representers = alpha.repeat(1, samples) + exact.to(alpha) - shift
        slopes = beta.repeat(1, samples) - slope
        return FunctionSamples(self.kernel, self.seen.inputs, self.trend, prior, representers, slopes, c, solution)

    @working("predict")
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

    @working("predict")
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
                return Draws(drawn) if joint else apart(mean, self._spread(drawn, mean))
            if joint:
                return JointMoments(self.mean(x), self.joint_covariance(x))
            found = torch.empty(len(x), c, dtype=x.dtype, device=x.device)
            for group, covariance in zip(self.groups, self.covariances, strict=True):
                found[:, group.outputs] = covariance.variance(x)[:, None]
            return apart(self.mean(x), found)

    def joint_covariance(self, x: Float[Tensor, "m p"]) -> Float[Tensor, "m c m c"]:
        """What is not known of the function at all inputs together, by exact solves.

        Args:
            x: Inputs.
        """
        c = self.data.outputs
        found = torch.zeros(len(x), c, len(x), c, dtype=x.dtype, device=x.device)
        for group, covariance in zip(self.groups, self.covariances, strict=True):
            joint = covariance.joint(x)
            for output in group.outputs:
                found[:, output, :, output] = joint
        return found

    def _spread(self, drawn: Float[Tensor, "s m c"], mean: Float[Tensor, "m c"]) -> Float[Tensor, "m c"]:
        """Variances of functions drawn around the mean; outputs that are alike are draws of the same."""
        squares = (drawn - mean).square()
        found = torch.empty_like(mean)
        for group in self.groups:
            found[:, group.outputs] = squares[..., group.outputs].mean((0, 2))[:, None]
        return found

    @working("evidence")
    def log_marginal(self) -> float | Estimate:
        """Log evidence log p(y), nats, at the β of most likelihood (Antorán 2024, equation 2.43).

        An ``Estimate`` by stochastic Lanczos quadrature where the solver is not exact.
        """
        if isinstance(self.solver, Cholesky):
            logdets = [self.solver.factor(group.problem).diagonal().log().sum() for group in self.groups]
            return self.log_density(*self.representers, [2.0 * float(logdet) for logdet in logdets])
        found = [
            log_determinant(
                group.problem.precision,
                preconditioner=self.solver.preconditioner_of(group.problem),
                generator=torch.Generator().manual_seed(self.settings.seed + number),
            )
            for number, group in enumerate(self.groups)
        ]
        value = self.log_density(*self.representers, [logdet.value for logdet in found])
        errors = [0.5 * len(group.outputs) * logdet.stderr for group, logdet in zip(self.groups, found, strict=True)]
        return Estimate(value, math.hypot(*errors), found[0].samples)

    def log_density(self, alpha: Float[Tensor, "n c"], beta: Float[Tensor, "q c"], logdets: Sequence[float]) -> float:
        """Log evidence, nats, from α, β and ``log |K + N|`` of each group."""
        n, c = self.seen.targets.shape
        rest = self.seen.targets - self.trend(self.seen.inputs.to(beta)) @ beta
        sizes = sum(len(group.outputs) * logdet for group, logdet in zip(self.groups, logdets, strict=True))
        fit = float((rest * alpha).double().sum()) + sizes + c * n * math.log(2 * math.pi)
        return float(self.data.repeated(self.noises)[0].sum()) - 0.5 * fit

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
        return replace(self, data=self.data.select(index), settings=replace(self.settings, dtype=None), start=())

    def first(self, size: int) -> Process:
        """That of the first observations without copies, until they have so many distinct inputs; see ``select``."""
        data = self.data.without_copies
        part = slice(data.reach(size))
        return replace(self, data=data.select(part), settings=replace(self.settings, dtype=None), start=())

    def tuned(self, method: Any, progress: bool | None) -> Process:
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

    def with_choices(self, kernel: Kernels, likelihood: Gaussian) -> Process:
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
        """``(K + N)⁻¹ (z + ε)`` of draws, before it that of ``[y, H]`` where asked, from where earlier solves came."""
        c, q = self.data.outputs, self.trend(self.seen.inputs[:1]).shape[1]
        first = c + q * len(self.groups) if asked else 0
        initial = self._initial(first, first + values.shape[1])
        places = list[int]()
        parts = list[Solution]()
        for number, group in enumerate(self.groups):
            drawn = group.columns(values.shape[1], c)
            own = [*group.outputs, *range(c + q * number, c + q * (number + 1))] if asked else []
            place = own + [first + column for column in drawn]
            start = None if initial is None else initial[:, place]
            parts.append(self._solved_of(group, values[:, drawn], noise[:, drawn], start, asked=asked))
            places += place
        whole = joined(parts)
        order = torch.tensor(places).argsort()
        check_solved(whole, self.solver, self.dtype)
        return replace(whole, value=whole.value[:, order], residual=whole.residual[order])

    def _initial(self, first: int, width: int) -> Float[Tensor, "n k"] | None:
        """Earlier solutions where they are of the same columns, zeros for the others; ``None`` where there are none."""
        if not self.start:
            return None
        initial = torch.zeros(len(self.seen), width, dtype=self.dtype, device=self.seen.inputs.device)
        for part, earlier in zip(initial.tensor_split([first], 1), self.start, strict=False):
            if earlier.value.shape[1] == part.shape[1] and len(earlier.value) <= len(part):
                part[: len(earlier.value)] = earlier.value
        return initial

    def _solved_of(
        self,
        group: OutputGroup,
        values: Float[Tensor, "n k"],
        noise: Float[Tensor, "n k"],
        initial: Float[Tensor, "n l"] | None,
        *,
        asked: bool,
    ) -> Solution:
        """The columns of one group.

        The solve is for what H does not explain of y by ordinary least squares: tolerances are relative.
        """
        like = group.noise
        known = slice(None) if asked else slice(0)
        y = self.seen.targets[:, group.outputs][:, known].double()
        h = self.trend(self.seen.inputs)[:, known].double()
        rest, explained = least_squares(h, h, y)
        explained = explained.to(like)
        own = slice(y.shape[1])
        basis = slice(y.shape[1], y.shape[1] + h.shape[1])
        values = torch.cat([rest.to(like), h.to(like), values.to(like)], 1)
        noise = torch.cat([torch.zeros_like(values[:, : basis.stop]), noise.to(like)], 1)
        if initial is not None:
            initial[:, own] -= initial[:, basis] @ explained
        try:
            solution = self.solver.drawn(group.problem, values, noise, initial=initial)
        except NumericalError as error:
            raise singular(error, group.noise) from None
        if solution.error is not None:
            drawn = slice(basis.stop, None)
            check_drawn(solution.error[drawn], values[:, drawn] + noise[:, drawn], group.noise, self.solver)
        solution.value[:, own] += solution.value[:, basis] @ explained
        return solution

    def _known(self) -> tuple[Solution, ...]:
        """The solves that were made."""
        if "functions" in vars(self):
            return (self.answers, self.functions.solution)
        return (self.answers,) if "answers" in vars(self) else self.start

    def _fitted(self, solved: Float[Tensor, "n k"]) -> tuple[Float[Tensor, "n k"], Float[Tensor, "q k"]]:
        """Representers and slopes of solved columns, all outputs of a draw together."""
        c = self.data.outputs
        basis = self.trend(self.seen.inputs.to(solved))
        representers = torch.empty_like(solved)
        slopes = solved.new_empty(basis.shape[1], solved.shape[1])
        for number, group in enumerate(self.groups):
            columns = group.columns(solved.shape[1], c)
            found = least_squares(basis, self._solved_basis(number), solved[:, columns])
            representers[:, columns], slopes[:, columns] = found
        return representers, slopes

    def _solved_basis(self, number: int) -> Float[Tensor, "n q"]:
        """``(K + N)⁻¹ H`` of one group."""
        solved = self.answers.value[:, self.data.outputs :]
        q = solved.shape[1] // len(self.groups)
        return solved[:, q * number : q * (number + 1)]
