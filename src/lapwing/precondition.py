"""Cheap structured approximations of a posterior precision, for Krylov methods to start from.

A preconditioner is any ``Structured`` operator P ≈ Λ. The recipes here make one from what they know of the problem; the
structures ``Diagonal()``, ``KFAC()`` and ``LowRank()`` are recipes too. The closer P, the fewer the iterations; each
costs a solve with P, which should be cheap beside a product with Λ.
"""

from __future__ import annotations

import abc
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, final, get_args, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.dense import jacobian_rows
from lapwing.curvature.diagonal import DiagonalSum
from lapwing.curvature.ggn import GGN
from lapwing.curvature.layers import Pass
from lapwing.curvature.sums import Accumulator, Held, chunk_size, raw, score, sweep
from lapwing.data import chunks, concatenated, take
from lapwing.errors import ConfigError, TooLargeError, UnsupportedError, check_option
from lapwing.likelihoods.targets import IGNORED
from lapwing.linalg import LowRank, Structured
from lapwing.linalg.pivoted import pivoted_cholesky
from lapwing.problem import Problem, Training
from lapwing.types import Inputs

Pivots: TypeAlias = Literal["greedy", "random"]


@runtime_checkable
class Preconditioner(Protocol):
    """A recipe for a structured approximation of the posterior precision."""

    def approximate(self, problem: Problem) -> Structured:
        """P ≈ Λ, which solves, roots and log-dets exactly."""
        ...


@dataclass(frozen=True)
class CurvatureRecipe(abc.ABC):
    """A recipe ``P = s G̃ + A`` whose G̃ ≈ G is made once and serves any prior and noise."""

    @abc.abstractmethod
    def curvature(self, problem: Problem) -> Structured:
        """G̃, to which a diagonal can be added exactly."""

    def approximate(self, problem: Problem) -> Structured:
        """``P``."""
        return problem.with_curvature(self.curvature(problem))


def approximation(problem: Problem, recipe: Preconditioner) -> Structured:
    """What a recipe makes of a problem, made once for each problem; what does not know its prior, once for all.

    Raises:
        ConfigError: If the recipe is not hashable.
    """
    if getattr(type(recipe), "__hash__", None) is None:
        raise ConfigError(
            "a recipe that is frozen, so that it can be told from others", f"{recipe}", "@dataclass(frozen=True)"
        )
    if recipe not in problem.prepared:
        problem.prepared[recipe] = _made(problem, recipe)
    return problem.prepared[recipe]


def _made(problem: Problem, recipe: Preconditioner) -> Structured:
    if not isinstance(recipe, CurvatureRecipe):
        return recipe.approximate(problem)
    if recipe not in problem.kept:
        problem.kept[recipe] = recipe.curvature(problem)
    return problem.with_curvature(problem.kept[recipe])


@final
@dataclass(frozen=True)
class PivotedCholesky(CurvatureRecipe):
    """``P = s L Lᵀ + A`` with L the partial Cholesky factor of G at well-chosen pivots.

    Pivots are driven by the exact diagonal of G, in coordinates in which the prior is standard normal: the largest
    residual first, or drawn in proportion to it (Harbrecht et al. 2012; Chen et al. 2023). L is made once: for another
    prior it is still a factor of G, its pivots those of the prior it was made for.

    Args:
        rank: Columns of L.
        pivots: ``"greedy"`` or ``"random"``.
        block: Pivots multiplied together.
        seed: Of the random pivots.

    Raises:
        ConfigError: If the rank or the block is not positive.

    Cost:
        A pass for the diagonal, ``rank`` products with G in blocks; memory ``d rank``.

    Example:
        >>> import lapwing as lw
        >>> lw.CG(preconditioner=lw.PivotedCholesky(50)).preconditioner
        PivotedCholesky(rank=50, pivots='greedy', block=16, seed=0)
    """

    rank: int
    pivots: Pivots = "greedy"
    block: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("pivots", self.pivots, get_args(Pivots))
        if self.rank < 1 or self.block < 1:
            raise ConfigError("a positive rank and block", f"rank={self.rank}, block={self.block}", "rank=100")

    def curvature(self, problem: Problem) -> LowRank:
        """``L Lᵀ``."""
        training = training_of(problem, self)
        curvature = summed(training, DiagonalSum(training.network)).operator
        prior = problem.prior.values
        factor = pivoted_cholesky(
            problem.in_prior_units(),
            curvature.diagonal() / prior,
            self.rank,
            random=self.pivots == "random",
            block=self.block,
            generator=torch.Generator().manual_seed(self.seed),
        )
        return LowRank(prior.sqrt()[:, None] * factor)


@final
@dataclass(frozen=True)
class Subsample(CurvatureRecipe):
    """``P = s w Σ_B J_nᵀ B_n J_n + A``: the exact curvature of a few examples, inverted by Woodbury's identity.

    With labels, every class has its share of them. ``w = N / B`` where it is scaled, else 1.

    Args:
        examples: Examples B.
        scaled: Whether they stand for all N.
        max_bytes: Largest factor ``[d, B c]`` it will make.

    Raises:
        ConfigError: If there are no examples.
        TooLargeError: If the factor would be larger; nothing is computed.

    Cost:
        A forward and c backward passes for B examples, ``d (B c)²`` once; memory ``d B c`` numbers.
    """

    examples: int
    scaled: bool = True
    max_bytes: int = 2**31

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ConfigError("at least one example", f"examples={self.examples}", "Subsample(50)")

    def curvature(self, problem: Problem) -> LowRank:
        """``w Σ_B J_nᵀ B_n J_n``."""
        training = training_of(problem, self)
        self._check(training)
        inputs, targets = balanced(training, self.examples)
        factor = root_rows(training, inputs, targets).mT
        weight = training.examples / len(targets) if self.scaled else 1.0
        return LowRank(weight**0.5 * factor)

    def _check(self, training: Training) -> None:
        like, rows = training.network.like, self.examples * training.survey.output.numel()
        needed = rows * training.network.size * like.element_size()
        if needed > self.max_bytes:
            raise TooLargeError(
                f"Jacobian rows of at most {self.max_bytes:,} bytes",
                f"{rows:,} rows of {training.network.size:,} weights, which need {needed:,} bytes",
                "Subsample with fewer examples, PivotedCholesky(100), or a larger max_bytes",
            )


@final
@dataclass(frozen=True)
class RankOne(CurvatureRecipe):
    """``P = s ∇ ∇ᵀ + A`` with ∇ the gradient of the log likelihood (the likelihood as a whole linearised).

    The cheapest and the least: it mends one eigenvalue, and none at an optimum of the likelihood.

    Cost:
        A gradient over the data.
    """

    def curvature(self, problem: Problem) -> LowRank:
        """``∇ ∇ᵀ``."""
        training = training_of(problem, self)
        gradient = score(training.network, training.survey, training.data, training.likelihood)
        return LowRank(gradient[:, None])


def training_of(problem: Problem, recipe: object) -> Training:
    """The network behind a problem.

    Raises:
        UnsupportedError: If there is none.
    """
    if problem.training is None:
        raise UnsupportedError(
            f"a problem with a network and training data for {recipe}", "operators alone", "LowRank(100)"
        )
    return problem.training


def summed(training: Training, total: Accumulator) -> Held:
    """The generalised Gauss-Newton matrix in a structure, from one sweep over the training data."""
    sweep(training.network, training.survey, training.data, training.likelihood, GGN(), total)
    return total.result()


def root_rows(training: Training, inputs: Inputs, targets: Tensor) -> Float[Tensor, "m d"]:
    """``Sᵀ J`` of some examples, explicit."""
    network, survey, likelihood = training.network, training.survey, training.likelihood
    size = chunk_size(network, survey, likelihood, GGN(), network.layout.size)
    rows: list[Tensor] = []
    for place, part in chunks(inputs, size):
        forward = Pass(network, survey, part)
        f = likelihood.canonical(forward.outputs)
        y = likelihood.canonical_targets(f, targets[place])
        for cotangents in GGN().cotangents(likelihood, f, y):
            rows.append(jacobian_rows(network, forward.factors(raw(likelihood, cotangents))).flatten(0, 1))
    return torch.cat(rows)


def balanced(training: Training, examples: int) -> tuple[Inputs, Tensor]:
    """Examples from one pass over the training data, every label having its share where targets are labels.

    Otherwise they are spread evenly. Ignored labels are left out.
    """
    even = set(torch.linspace(0, training.examples - 1, min(examples, training.examples)).round().long().tolist())
    inputs: list[Inputs] = []
    targets: list[Tensor] = []
    turns: list[Tensor] = []
    seen, position = Counter[int](), 0
    for batch in training.data:
        if batch.targets.ndim == 1 and not batch.targets.is_floating_point():
            turn = torch.tensor([_turn(seen, label) for label in batch.targets.tolist()])
        else:
            turn = torch.tensor([0 if position + i in even else examples for i in range(len(batch))])
        position += len(batch)
        kept = (turn < examples).nonzero()[:, 0]
        if len(kept):
            inputs.append(take(batch.inputs, kept.to(batch.targets.device)))
            targets.append(batch.targets[kept.to(batch.targets.device)])
            turns.append(turn[kept])
    first = torch.cat(turns).argsort(stable=True)[:examples].to(targets[0].device)
    return take(concatenated(inputs), first), torch.cat(targets)[first]


def _turn(seen: Counter[int], label: int) -> int:
    """How many examples of a label came before this one; more than there are for an ignored one."""
    if label == IGNORED:
        return sys.maxsize
    seen[label] += 1
    return seen[label] - 1
