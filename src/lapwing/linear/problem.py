"""The Gaussian linear model as solvers see it, in either view, by products alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor

from lapwing.linalg import Diagonal, FunctionOperator, Operator, Structured
from lapwing.linear.function_view import FunctionView
from lapwing.linear.gauss_newton import GGNProduct
from lapwing.linear.model import LinearModel
from lapwing.linear.psd_operator import PSDOperator


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """A posterior precision ``Λ = s G + A`` with ``G = R Rᵀ``, known by products with G, R and A.

    Args:
        curvature: G, ``[d, d]``: a ``GGNProduct`` of a linear model, or a kernel matrix.
        prior: A.
        scale: s, the noise precision relative to the one G was computed with.
        curvature_cache: Structured approximations G̃ of G, by recipe; all problems with this G share them.

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

    curvature: PSDOperator
    prior: Diagonal
    scale: float = 1.0
    curvature_cache: dict[object, CachedCurvature] = field(default_factory=dict, repr=False)
    cache: dict[object, Any] = field(default_factory=dict, init=False, repr=False)
    """What was made of this problem alone, by what made it: factors, preconditioners."""

    @classmethod
    def of(cls, model: LinearModel, prior: Diagonal, scale: float = 1.0) -> Problem:
        """The problem of a linear model with the generalised Gauss-Newton matrix as its curvature.

        Args:
            model: The linear model and its data.
            prior: A, on the flat vector of its weights.
            scale: s.
        """
        return cls(GGNProduct(model), prior, scale)

    # the weight view: Λ = s G + A

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

    @property
    def root(self) -> Operator:
        """R, ``[d, r]``."""
        return self.curvature.root

    @property
    def model(self) -> LinearModel | None:
        """The linear model behind G; ``None`` for a kernel."""
        return self.curvature.linear_model

    # the function view: I + s Rᵀ A⁻¹ R

    def function_view(self) -> Problem:
        """The same problem over functions: ``I + s Rᵀ A⁻¹ R``, which is ``I + B^½ K B^½`` for the kernel K = J A⁻¹ Jᵀ.

        Its determinant is that of ``A⁻¹ Λ``, its effective dimension that of Λ. With ``R t = Jᵀ B y`` the mean of
        the weights is ``A⁻¹ R (I + s Rᵀ A⁻¹ R)⁻¹ s t``. B has no inverse for classes; none is asked for.
        """
        ones = self.prior.values.new_ones(self.root.shape[1])
        return Problem(FunctionView(self.curvature, self.prior), Diagonal(ones), self.scale)

    # the same curvature, otherwise

    def with_prior(self, prior: Diagonal, scale: float) -> Problem:
        """The problem with another prior and noise: G, its approximations, and what its products keep is shared."""
        return replace(self, prior=prior, scale=scale)

    def with_curvature(self, curvature: Structured) -> Structured:
        """``s G̃ + A``: the precision with a curvature in a structure.

        Args:
            curvature: G̃ ≈ G, in any precision.
        """
        return curvature.scaled(self.scale).plus_diagonal(self.prior.values.to(curvature.device, curvature.dtype))

    def in_prior_units(self) -> Operator:
        """``A^-½ G A^-½``: the curvature in coordinates in which the prior is standard normal."""
        unit = self.prior.inverse_root()

        def product(block: Tensor) -> Tensor:
            return unit @ (self.curvature @ (unit @ block))

        return FunctionOperator(product, product, self.prior.shape, self.prior.values)


@final
@dataclass(eq=False)
class CachedCurvature:
    """A structured G̃ ≈ G, with the last precision made of it: Newton steps and draws ask for the same in turn.

    Args:
        curvature: G̃.
    """

    curvature: Structured
    _last: tuple[Tensor, float, Structured] | None = field(default=None, init=False, repr=False)

    def precision(self, problem: Problem) -> Structured:
        """``s G̃ + A``, made anew where A or s is another than before."""
        if self._last is not None:
            values, scale, precision = self._last
            if scale == problem.scale and torch.equal(values, problem.prior.values):
                return precision
            del precision
        self._last = None  # gone before the next is made: there is room for one
        made = problem.with_curvature(self.curvature)
        self._last = (problem.prior.values, problem.scale, made)
        return made
