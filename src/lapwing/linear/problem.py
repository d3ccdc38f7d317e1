"""The Gaussian linear model as solvers see it, in either view, by products alone; what is near it in structures."""

from __future__ import annotations

import abc
import hashlib
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data.inputs import bits
from lapwing.ground.errors import ConfigError, UnsupportedError, check_bytes
from lapwing.linalg import Diagonal, FunctionOperator, Operator, Structured
from lapwing.linear.gauss_newton import FunctionView, GGNProduct, Gram
from lapwing.linear.model import LinearModel

NOISE = 2**34
"""Bytes the noise of the draws of a posterior may take, unless more is asked for (16 GiB)."""


@final
@dataclass(frozen=True, eq=False)
class Perturbation:
    """Noise that turns a solve into a draw from N(0, Λ⁻¹), in units that do not know the prior's precision.

    Drawn once, it serves a problem with any prior and noise: what moves with them is only how it is scaled
    (Antorán 2024, section 6.2.3).

    Args:
        data: ``R ε₁`` with standard normal ε₁, one draw a column.
        prior: Standard normal ε₂.
    """

    data: Float[Tensor, "d s"]
    prior: Float[Tensor, "d s"]

    @classmethod
    def joined(cls, parts: list[Perturbation]) -> Perturbation:
        """The draws of all parts."""
        return cls(torch.cat([part.data for part in parts], 1), torch.cat([part.prior for part in parts], 1))

    def fingerprint(self) -> str:
        """The first digits of the SHA-256 of ε₂, by which noise is told from other noise."""
        return hashlib.sha256(bits(self.prior)).hexdigest()[:12]

    def head(self, samples: int) -> Perturbation:
        """The first draws, all where there are no more."""
        return Perturbation(self.data[:, :samples], self.prior[:, :samples])

    def right_hand_side(self, problem: Problem) -> Float[Tensor, "d s"]:
        """``√s R ε₁ + A^½ ε₂``: draws from N(0, Λ)."""
        return problem.scale**0.5 * self.data + problem.prior.root() @ self.prior

    def start(self, problem: Problem) -> Float[Tensor, "d s"]:
        """``A^-½ ε₂``: the draws before any data, where iterations that see little of the data should start."""
        return problem.prior.inverse_root() @ self.prior


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """A posterior precision ``Λ = s G + A`` with ``G = R Rᵀ``, known by products with G, R and A.

    Args:
        curvature: G, ``[d, d]``: a ``GGNProduct`` of a linear model, or a kernel matrix.
        prior: A.
        scale: s, the noise precision relative to the one G was computed with.
        kept: Approximations of G, by recipe; they serve any prior and noise.

    Example:
        >>> from lapwing.linear.model import Matrix
        >>> problem = Problem.of(Matrix(torch.tensor([[1.0, 0.0], [1.0, 2.0]])), Diagonal(torch.ones(2)))
        >>> problem.precision.dense()
        tensor([[3., 2.],
                [2., 5.]])
        >>> problem.function_view().precision.dense()
        tensor([[2., 1.],
                [1., 6.]])
    """

    curvature: Gram
    prior: Diagonal
    scale: float = 1.0
    kept: dict[object, Kept] = field(default_factory=dict, repr=False)
    prepared: dict[object, Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, model: LinearModel, prior: Diagonal, scale: float = 1.0) -> Problem:
        """The problem of a linear model with the generalised Gauss-Newton matrix as its curvature.

        Args:
            model: The linear model and its data.
            prior: A, on the flat vector of its weights.
            scale: s.
        """
        return cls(GGNProduct(model), prior, scale)

    @property
    def model(self) -> LinearModel | None:
        """The linear model behind G; ``None`` for a kernel."""
        return self.curvature.model if isinstance(self.curvature, GGNProduct) else None

    @property
    def root(self) -> Operator:
        """R, ``[d, r]``."""
        return self.curvature.root

    def with_prior(self, prior: Diagonal, scale: float) -> Problem:
        """The problem with another prior and noise: G, its approximations, and what its products keep is shared."""
        return replace(self, prior=prior, scale=scale)

    def function_view(self) -> Problem:
        """The same problem over functions: ``I + s Rᵀ A⁻¹ R``, which is ``I + B^½ K B^½`` for the kernel K = J A⁻¹ Jᵀ.

        Its determinant is that of ``A⁻¹ Λ``, its effective dimension that of Λ. With ``R t = Jᵀ B y`` the mean of
        the weights is ``A⁻¹ R (I + s Rᵀ A⁻¹ R)⁻¹ s t``. B has no inverse for classes; none is asked for.
        """
        ones = self.prior.values.new_ones(self.root.shape[1])
        return Problem(FunctionView(self.curvature, self.prior), Diagonal(ones), self.scale)

    def in_prior_units(self) -> Operator:
        """``A^-½ G A^-½``: the curvature in coordinates in which the prior is standard normal."""
        curvature, unit = self.curvature, self.prior.inverse_root()

        def product(block: Tensor) -> Tensor:
            return unit @ (curvature @ (unit @ block))

        return FunctionOperator(product, product, self.prior.shape, self.prior.values)

    def with_curvature(self, curvature: Structured) -> Structured:
        """``s G̃ + A``: the precision with a curvature in a structure.

        Args:
            curvature: G̃ ≈ G, in any precision.
        """
        return curvature.scaled(self.scale).plus_diagonal(Diagonal(self.prior.values.to(curvature.dtype)))

    @property
    def size(self) -> int:
        """Uncertain weights d."""
        return self.prior.shape[0]

    @property
    def precision(self) -> Operator:
        """``Λ``; made anew each time, since kept here it would keep this problem, and its preconditioners, alive."""

        def product(block: Tensor) -> Tensor:
            return self.scale * (self.curvature @ block) + self.prior @ block

        return FunctionOperator(product, product, self.prior.shape, self.prior.values)

    def perturbation(
        self, samples: int, *, max_bytes: int | None = None, generator: torch.Generator | None = None
    ) -> Perturbation:
        """Noise drawn once, for right-hand sides of covariance Λ whatever the prior and the noise.

        Args:
            samples: Draws, one a column.
            max_bytes: Most memory it may take; ``None`` for any.
            generator: Source of randomness.

        Raises:
            TooLargeError: If it would take more; nothing is drawn.

        Cost:
            One product with R; memory ``(2 d + r)`` numbers a draw, of which ``2 d`` are kept.
        """
        like, rows = self.prior.values, self.root.shape[1]
        needed = samples * (2 * self.size + rows) * like.itemsize
        if max_bytes is not None:
            got = f"{samples:,} draws of {self.size:,} weights and {rows:,} outputs, which need"
            check_bytes("noise", needed, max_bytes, got, "fewer samples, or a larger max_bytes")
        data = probes.gaussian((rows, samples), like=like, generator=generator)
        prior = probes.gaussian((self.size, samples), like=like, generator=generator)
        return Perturbation(self.root @ data, prior)


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


@final
@dataclass(eq=False)
class Kept:
    """G̃ that a recipe made, with the last precision made of it: Newton steps and draws ask for the same in turn.

    Args:
        curvature: G̃.
    """

    curvature: Structured
    _last: tuple[Tensor, float, Structured] | None = field(default=None, init=False, repr=False)

    def precision(self, problem: Problem) -> Structured:
        """``s G̃ + A``, made anew where A or s is another than before."""
        values, scale = problem.prior.values, problem.scale
        if self._last is None or self._last[1] != scale or not torch.equal(self._last[0], values):
            self._last = None  # gone before the next is made: there is room for one
            self._last = (values, scale, problem.with_curvature(self.curvature))
        return self._last[2]


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
        if recipe not in problem.kept:
            problem.kept[recipe] = Kept(recipe.curvature(problem))
        return problem.kept[recipe].precision(problem)
    if recipe not in problem.prepared:
        problem.prepared[recipe] = recipe.approximate(problem)
    return problem.prepared[recipe]


def model_of(problem: Problem, recipe: object) -> LinearModel:
    """The linear model behind a problem.

    Raises:
        UnsupportedError: If there is none.
    """
    if problem.model is None:
        raise UnsupportedError(f"a problem with a linear model and data for {recipe}", "a matrix alone", "LowRank(100)")
    return problem.model
