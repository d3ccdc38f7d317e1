"""A Gaussian over the weights known by draws from it alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import check_count, check_option
from lapwing.ground.files.archive import Json
from lapwing.ground.files.records import UNRECORDED, Records
from lapwing.ground.progress import working
from lapwing.ground.results import Estimate, Solution
from lapwing.ground.shared import Shared
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Likelihood
from lapwing.linalg.operators.inverse_forms import SumForm
from lapwing.linear.perturbation import NOISE, Perturbation
from lapwing.posteriors.effective_dimension import Estimator, by_draws, output_squares
from lapwing.posteriors.iterative import IterativePosterior, warn_unless
from lapwing.posteriors.log_det_integral import log_det_integral
from lapwing.posteriors.record import check_part_shape
from lapwing.posteriors.step import Step
from lapwing.predictive import Draws, FactorMoments, JointMoments, Link, Moments, Outputs
from lapwing.priors import Prior


@final
@dataclass(frozen=True, eq=False, repr=False)
class SampledPosterior(IterativePosterior):
    """N(θ*, Λ⁻¹) with Λ = s G + A, known by k draws of it: ``θ* + ζ_j``, each ζ_j a solve (Antorán 2024, chapter 6).

        ζ = Λ⁻¹ (√s R ε₁ + A^½ ε₂),    cov(f) = (1/k) Σ_j (J ζ_j)(J ζ_j)ᵀ,    p(y) = (1/k) Σ_j p(y | f + J ζ_j)

    The noise is drawn once: with another prior or noise precision the draws move as little as they must, and are
    solved again from where they were, when they are first asked for. No solve is needed to predict. Variances from k
    draws have a relative standard error of ``√(2/k)``, 18 % for 64.

    All links but ``"mc"`` take the covariance of the draws; ``"mc"`` averages over the draws themselves, at
    most ``samples`` of them, jointly over the inputs. Draws of weights and functions are the k there are, in random
    order, none twice before all were taken once.

    Args:
        solver: What solves with Λ.
        perturbation: The noise ε of k draws.
        initial: Where the solves start; ``None`` for draws from the prior.
        solved: The draws, once they were solved for.
        squares: ``output_squares``, once it was asked for.
    """

    perturbation: Perturbation
    initial: Float[Tensor, "d k"] | None = field(default=None, metadata=UNRECORDED)
    solved: Shared[Solution] = field(default_factory=Shared[Solution], kw_only=True, metadata=UNRECORDED)
    squares: Shared[Tensor] = field(default_factory=Shared[Tensor], kw_only=True, metadata=UNRECORDED)

    def __getstate__(self) -> dict[str, Any]:
        """See ``NetworkPredictor.__getstate__``; the draws are not solved for again."""
        return super().__getstate__() | {"solved": self.solved, "squares": self.squares}

    def record(self, records: Records, *, training_inputs: bool = False) -> Json:
        """See ``Posterior.record``; draws are solved for now if they were not."""
        return {
            **self._fields_record(records),
            "solution": records.state(self.solution, "solution"),
            "squares": records.state(self.output_squares, "squares"),
        }

    @classmethod
    def of_record(cls, record: Json, records: Records, network: Network, data: Data | None) -> SampledPosterior:
        """See ``Posterior.of_record``."""
        posterior = super().of_record(record, records, network, data)
        solution = records.read(Solution, record.get("solution"), "solution")
        squares = records.read(Float[Tensor, "g k"], record.get("squares"), "squares")
        return replace(
            posterior,
            solved=Shared(solution, posterior.perturbation),
            squares=Shared(squares, posterior.perturbation),
        )

    def check_record(self) -> None:
        """See ``Posterior.check_record``."""
        super().check_record()
        check_part_shape("the draws", self.draws.shape[:1], (self.network.size,))
        check_part_shape("the noise", self.perturbation.prior.shape, self.draws.shape)
        check_part_shape("the residuals", self.solution.residual.shape[-1:], self.draws.shape[1:])
        check_part_shape("their squares", self.output_squares.shape[-1:], self.draws.shape[1:])

    @property
    def wide(self) -> bool:
        """See ``Posterior.wide``; whatever makes the outputs."""
        return self.model.event[-1] > self.model.limits.joint_outputs

    @property
    def moment_numbers(self) -> int:
        """See ``Posterior.moment_numbers``: the draws of each output."""
        return self.model.event[-1] * self.samples if self.wide else super().moment_numbers

    @property
    def draws(self) -> Float[Tensor, "d k"]:
        """The draws' deviations ζ from θ*, one a column, solved for on first use.

        Warns:
            ConvergenceWarning: If the solve missed its tolerance.
        """
        return self.solution.value

    @property
    def solution(self) -> Solution:
        """The draws with how well they were solved for, and what that cost."""
        return self.solved.of(self.perturbation, make=self._solve)

    @property
    def found(self) -> Solution | None:
        """``solution``, once it was asked for."""
        return self.solved.known(self.perturbation)

    def _solve(self) -> Solution:
        start = self.perturbation.start(self.problem) if self.initial is None else self.initial
        with torch.no_grad():
            right_hand_side = self.perturbation.right_hand_side(self.problem)
            solution = self.solver.solve(self.problem, right_hand_side, initial=start)
        warn_unless(solution, self.solver.cure)
        return solution

    @property
    def output_squares(self) -> Float[Tensor, "g k"]:
        """``ζ_gᵀ (G ζ)_g`` of each group of weights and draw, float64.

        Their sum is how far a draw moves the training outputs, squared, in units of their noise.

        Cost:
            A product with G, once.
        """
        return self.squares.of(self.perturbation, make=self._squared_outputs)

    def _squared_outputs(self) -> Float[Tensor, "g k"]:
        group, groups = self.prior.groups(self.network.uncertain)
        return output_squares(self.problem, self.draws, group, groups)

    @property
    def samples(self) -> int:
        """Draws k."""
        return self.perturbation.prior.shape[1]

    def with_hyperparameters(
        self, prior: Prior, likelihood: Likelihood, steps: tuple[Step, ...] = ()
    ) -> SampledPosterior:
        """See ``Posterior.with_hyperparameters``; the same noise, the solves started from the present draws.

        They start from them in units of the prior, ``A^½ ζ``: directions the data say nothing about, where a descent is
        slowest, are then where they belong.
        """
        changed = super().with_hyperparameters(prior, likelihood, steps)
        before = self.prior_diagonal.to(self.network.like)
        after = changed.prior_diagonal.to(self.network.like)
        if likelihood == self.likelihood and torch.equal(before, after):
            same_groups = prior.shares(self.prior, self.network.uncertain)
            return changed if same_groups else replace(changed, squares=Shared[Tensor]())
        present = self.initial if self.found is None else self.found.value
        if present is None:
            return changed.restarted()
        return changed.restarted((before / after).sqrt()[:, None] * present)

    def restarted(
        self, initial: Float[Tensor, "d k"] | None = None, perturbation: Perturbation | None = None
    ) -> SampledPosterior:
        """The posterior whose draws are still to be solved for.

        Args:
            initial: Where the solves start; ``None`` for draws from the prior.
            perturbation: Their noise; ``None`` for the same.
        """
        return replace(
            self,
            perturbation=self.perturbation if perturbation is None else perturbation,
            initial=initial,
            solved=Shared[Solution](),
            squares=Shared[Tensor](),
        )

    @property
    def draw_noise(self) -> Perturbation:
        """See ``Capabilities.draw_noise``."""
        return self.perturbation

    def starting_from(self, draws: Float[Tensor, "d m"]) -> SampledPosterior:
        """The posterior whose first solves start at draws with the same noise, in units of the prior: ``A^½ ζ``.

        Args:
            draws: Its first draws, nearly; what there are more of than of its own is left out.
        """
        if self.found is not None:
            return self
        start = self.perturbation.start(self.problem) if self.initial is None else self.initial
        own = self.problem.prior.inverse_root() @ draws[:, : self.samples]
        return self.restarted(torch.cat([own, start[:, own.shape[1] :]], 1))

    @working("draws")
    def resampled(
        self, samples: int, *, max_bytes: int = NOISE, generator: torch.Generator | None = None
    ) -> SampledPosterior:
        """The posterior with other draws, from fresh noise.

        Few draws are enough to tune a prior by; predictions want more.

        Args:
            samples: Draws k.
            max_bytes: Memory their noise may take.
            generator: Source of randomness.

        Raises:
            TooLargeError: If it would take more; nothing is drawn.

        Cost:
            A product with a root of G now, a block solve when the draws are first asked for.
        """
        check_count("samples", samples, usual=64)
        with torch.no_grad():
            perturbation = Perturbation.drawn(self.problem, samples, max_bytes=max_bytes, generator=generator)
        return self.restarted(perturbation=perturbation)

    @working("sample")
    def sample(self, samples: int = 1, *, generator: torch.Generator | int | None = None) -> Float[Tensor, "s d"]:
        """Draws of the uncertain weights, one flat vector a row: those there are, in random order.

        Args:
            samples: Draws s; beyond k they come again.
            generator: Source of randomness for the order, or the seed of one.
        """
        source = probes.generator_of(generator)
        probes.check_draws(samples, source)
        return self.network.weights + Draws(self.draws.mT[..., None]).sample(samples, generator=source)[..., 0]

    @undisturbed()
    @working("evidence")
    def log_marginal(self, *, progress: bool | None = None) -> Estimate:
        """Log evidence, nats, its log determinant the integral of γ over prior precisions: ``log_det_integral``.

        Args:
            progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

        Returns:
            The estimate, with the standard error of k draws; see ``Posterior.log_marginal``.

        Warns:
            ConvergenceWarning: If a solve missed its tolerance.

        Cost:
            One or two dozen block solves with k columns, all but the last few easy ones.
        """
        values, solutions = log_det_integral(self.problem, self.perturbation, self.solver, progress=progress)
        for solution in solutions:
            warn_unless(solution, self.solver.cure)
        return self._log_marginal(Estimate.of(values))

    @undisturbed()
    @working("effective dimension")
    def effective_dimension(self, estimator: Estimator = "auto") -> Estimate:
        """Directions of weight space that the data determined, by the draws, with the standard error.

        ``γ = E[s ζᵀ G ζ]`` in the outputs, ``γ = d - E[ζᵀ A ζ]`` in the weights (Antorán 2024, section 6.2.1). The
        first varies less where γ is small beside d, the second where it is near d.

        Args:
            estimator: ``"outputs"``, ``"weights"``, or ``"auto"``, as tuning: see ``dimension.by_draws``.

        Cost:
            For ``"outputs"``, a product with G.
        """
        check_option("estimator", estimator, get_args(Estimator))
        group = self.prior.groups(self.network.uncertain)[0]
        dimensions = by_draws(
            self.draws, self.prior_diagonal, group, lambda: self.noise_scale * self.output_squares, estimator
        )
        return Estimate(dimensions.total, dimensions.error if self.samples > 1 else math.inf, self.samples)

    @cached_property
    def inverse_form(self) -> SumForm:
        """See ``Posterior.inverse_form``; by the draws."""
        return SumForm(added=self.draws / self.samples**0.5)

    def _linearised(self, inputs: Inputs, link: Link, joint: bool, samples: int) -> Outputs:
        """For link ``"mc"`` the draws themselves."""
        if link != "mc" or not self.likelihood.labels:
            return super()._linearised(inputs, link, joint, samples)
        check_count("samples", samples)
        return self._drawn(inputs, samples)

    def _networks(self, inputs: Inputs, samples: int, generator: torch.Generator | None) -> Draws:
        return super()._networks(inputs, min(samples, self.samples), generator)

    def _moments(self, inputs: Inputs, choices: Sequence[SampledPosterior]) -> list[Moments | FactorMoments]:
        draws_of_each = [choice.draws for choice in choices]
        largest = max(draws.numel() * draws.itemsize for draws in draws_of_each)
        together = max(1, self.model.limits.draw_bytes // largest)
        moments: list[Moments | FactorMoments] = []
        for first in range(0, len(draws_of_each), together):
            some = draws_of_each[first : first + together]
            mean, moved = self.pushed(inputs, torch.cat(some, 1))
            parts = moved.split([draws.shape[1] for draws in some], dim=-1)
            moments += [self._known_by_draws(mean, part) for part in parts]
        return moments

    def _known_by_draws(self, mean: Tensor, moved: Float[Tensor, "n *event c k"]) -> Moments | FactorMoments:
        factor = moved / moved.shape[-1] ** 0.5
        return FactorMoments(mean, factor) if self.wide else Moments.from_factor(mean, factor)

    def _joint_moments(self, inputs: Inputs) -> JointMoments:
        mean, moved = self.pushed(inputs, self.draws)
        factor = moved / self.samples**0.5
        rows = factor.flatten(0, -2)
        return JointMoments(mean, (rows @ rows.mT).view(*mean.shape, *mean.shape), factor)

    def _functions(
        self, inputs: Inputs, samples: int, generator: torch.Generator | None
    ) -> Float[Tensor, "s n *event c"]:
        return self._drawn(inputs).sample(samples, generator=generator)

    def _drawn(self, inputs: Inputs, samples: int | None = None) -> Draws:
        """The draws there are, or so many of them."""
        mean, moved = self.pushed(inputs, self.draws[:, :samples])
        return Draws(mean + moved.movedim(-1, 0))
