"""Ways to solve with a posterior precision, and to draw from its inverse."""

from __future__ import annotations

from lapwing.linear.solvers.cg import CG, Solver
from lapwing.linear.solvers.cholesky import Cholesky
from lapwing.linear.solvers.dual import SDD
from lapwing.linear.solvers.primal import PrimalSGD
from lapwing.linear.solvers.projections import AlternatingProjections
from lapwing.linear.solvers.roots import Contour, Lanczos, Perturb, Root
from lapwing.linear.solvers.sgd import SGD

__all__ = [
    "CG",
    "SDD",
    "SGD",
    "AlternatingProjections",
    "Cholesky",
    "Contour",
    "Lanczos",
    "Perturb",
    "PrimalSGD",
    "Root",
    "Solver",
]
