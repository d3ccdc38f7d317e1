"""What a recipe for a preconditioner is, and what it made of a problem."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from lapwing.ground.errors import ConfigError, UnsupportedError
from lapwing.linalg import Structured
from lapwing.linear.model import LinearModel
from lapwing.linear.problem import CachedCurvature, Problem


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
class GivenCurvature(CurvatureRecipe):
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
    if isinstance(recipe, CurvatureRecipe):
        if recipe not in problem.curvature_cache:
            problem.curvature_cache[recipe] = CachedCurvature(recipe.curvature(problem))
        return problem.curvature_cache[recipe].precision(problem)
    if recipe not in problem.cache:
        problem.cache[recipe] = recipe.approximate(problem)
    return problem.cache[recipe]


def model_of(problem: Problem, recipe: object) -> LinearModel:
    """The linear model behind a problem.

    Raises:
        UnsupportedError: If there is none.
    """
    if problem.model is None:
        raise UnsupportedError(f"a problem with a linear model and data for {recipe}", "a matrix alone", "LowRank(100)")
    return problem.model
