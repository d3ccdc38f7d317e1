"""Ways to solve with a posterior precision, and to draw from its inverse."""

from __future__ import annotations

from lapwing.linear.solvers.base import Solver
from lapwing.linear.solvers.cg import CG
from lapwing.linear.solvers.cholesky import Cholesky
from lapwing.linear.solvers.projections import AlternatingProjections
from lapwing.linear.solvers.sampling import Contour, Lanczos, Perturb, Root
from lapwing.linear.solvers.stochastic.dual import SDD
from lapwing.linear.solvers.stochastic.primal import PrimalSGD
from lapwing.linear.solvers.stochastic.sgd import SGD

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
