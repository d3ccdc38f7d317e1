"""What every recipe for a preconditioner answers, and what it is made from."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from lapwing.curvature.ggn import GGN
from lapwing.curvature.sums import Accumulator, Held, sweep
from lapwing.ground.errors import ConfigError, TooLargeError, UnsupportedError
from lapwing.jacobian.model import Model
from lapwing.linalg import Structured
from lapwing.linear.problem import Problem


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


@final
@dataclass(frozen=True, eq=False)
class Known(CurvatureRecipe):
    """``P = s G̃ + A`` with a G̃ that is at hand, such as that of a posterior.

    Args:
        matrix: G̃.
    """

    matrix: Structured

    def curvature(self, problem: Problem) -> Structured:
        """G̃."""
        return self.matrix


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


def training_of(problem: Problem, recipe: object) -> Model:
    """The network behind a problem.

    Raises:
        UnsupportedError: If there is none.
    """
    if problem.training is None:
        raise UnsupportedError(
            f"a problem with a network and training data for {recipe}", "operators alone", "LowRank(100)"
        )
    return problem.training


def summed(training: Model, total: Accumulator) -> Held:
    """The generalised Gauss-Newton matrix in a structure, from one sweep over the training data."""
    sweep(training, GGN(), total)
    return total.result()


def check_rows(training: Model, rows: int, max_bytes: int, cure: str) -> None:
    """Refuse so many explicit Jacobian rows where they would take more than ``max_bytes``.

    Raises:
        TooLargeError: If they would.
    """
    needed = rows * training.network.size * training.network.like.element_size()
    if needed > max_bytes:
        raise TooLargeError(
            f"Jacobian rows of at most {max_bytes:,} bytes",
            f"{rows:,} rows of {training.network.size:,} weights, which need {needed:,} bytes",
            cure,
        )
