"""What data leave unknown of a Gaussian process, by exact solves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.gp.kernels.base import Kernel
from lapwing.gp.kernels.matrix import cross, gram
from lapwing.gp.trend import Trend, orthonormalised
from lapwing.linear.implicit_solve import implicit_solve
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import Cholesky, Solver
from lapwing.predictive import Moments

ROWS = 1024
"""Inputs whose variances are computed together."""


@final
@dataclass(frozen=True, eq=False)
class Covariance:
    """``k(x, x') - K_{xX} C⁻¹ K_{Xx'} + r(x)ᵀ (Hᵀ C⁻¹ H)⁻¹ r(x')``, ``r(x) = h(x) - Hᵀ C⁻¹ K_{Xx}``, ``C = K + N``.

    The last term is what is not known of β (Rasmussen & Williams 2006, equation 2.42).

    Args:
        kernel: k.
        inputs: X.
        trend: h.
        solved_basis: ``C⁻¹ H``.
        problem: C.
        solver: What solves with it.
    """

    kernel: Kernel
    inputs: Float[Tensor, "n p"]
    trend: Trend
    solved_basis: Float[Tensor, "n q"]
    problem: Problem
    solver: Solver

    def variance(self, x: Float[Tensor, "m p"]) -> Float[Tensor, " m"]:
        """At each input alone."""
        found: list[Tensor] = []
        for rows in x.to(self.inputs).split(ROWS):
            across, rest, slopes = self._parts(rows)
            explained = self._quadratic_form(across) - (rest * slopes).sum(0)
            found.append((self.kernel.diagonal(rows) - explained).clamp_min(0.0))
        return torch.cat(found).to(x)

    def joint(self, x: Float[Tensor, "m p"]) -> Float[Tensor, "m m"]:
        """At all inputs together."""
        new = x.to(self.inputs)
        across, rest, slopes = self._parts(new)
        solved = implicit_solve(lambda block: self.solver.solve(self.problem, block).value, across)
        return (gram(self.kernel, new) - across.mT @ solved + rest.mT @ slopes).to(x)

    @cached_property
    def plain(self) -> PlainVariance:
        """The variance at each input alone by plain PyTorch, of ``Cholesky()``.

        Cost:
            Memory ``n²``.
        """
        lower = Cholesky().factor(self.problem)
        root = torch.linalg.solve_triangular(lower.mT, torch.eye(len(lower)).to(lower), upper=True)
        basis = self.trend(self.inputs)
        change, unit, solved_unit = (part.to(lower) for part in orthonormalised(basis, self.solved_basis))
        matrix = unit.mT @ solved_unit
        slopes = torch.linalg.cholesky(torch.linalg.inv((matrix + matrix.mT) / 2))
        along = change @ slopes
        return PlainVariance(self.kernel, self.inputs, self.trend, root, along, self.solved_basis.to(along) @ along)

    def _quadratic_form(self, across: Tensor) -> Tensor:
        """``vᵀ C⁻¹ v`` of each column."""
        return self.solver.quadratic_forms(self.problem, across)

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``K_{Xx}``, r, and ``(Hᵀ C⁻¹ H)⁻¹ r``, the latter two in the coordinates of ``orthonormalised``."""
        across = cross(self.kernel, self.inputs, x)
        rest = self.trend(x).mT - self.solved_basis.mT @ across
        basis = self.trend(self.inputs)
        change, unit, solved_unit = (part.to(x) for part in orthonormalised(basis, self.solved_basis))
        rest = change.mT @ rest
        return across, rest, torch.linalg.solve(unit.mT @ solved_unit, rest)


@final
@dataclass(frozen=True, eq=False)
class PlainVariance:
    """``k(x, x) - |Wᵀ K_{Xx}|² + |Aᵀ h(x) - Bᵀ K_{Xx}|²``, without checks of numbers: see ``Covariance``.

    Args:
        kernel: k.
        inputs: X.
        trend: h.
        root: W, with ``W Wᵀ = C⁻¹``.
        along: A, with ``A Aᵀ = (Hᵀ C⁻¹ H)⁻¹``.
        solved_along: ``B = C⁻¹ H A``.
    """

    kernel: Kernel
    inputs: Float[Tensor, "n p"]
    trend: Trend
    root: Float[Tensor, "n n"]
    along: Float[Tensor, "q r"]
    solved_along: Float[Tensor, "n r"]

    def __call__(self, x: Float[Tensor, "m p"]) -> Float[Tensor, " m"]:
        """The variance at each input."""
        across = self.kernel(x, self.inputs)
        explained = (across @ self.root).square().sum(1)
        slopes = (self.trend(x) @ self.along - across @ self.solved_along).square().sum(1)
        return (self.kernel.diagonal(x) - explained + slopes).clamp_min(0.0)


def independent(mean: Float[Tensor, "m c"], variance: Float[Tensor, "m c"]) -> Moments:
    """Outputs that are independent given the data."""
    return Moments(mean, torch.diag_embed(variance))
