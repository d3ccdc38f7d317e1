"""Ways to solve with a posterior precision, and to draw from its inverse."""

from __future__ import annotations

from lapwing.solvers.base import Solver
from lapwing.solvers.cg import CG
from lapwing.solvers.roots import Contour, Lanczos, Perturb, Root
from lapwing.solvers.sgd import SGD

__all__ = ["CG", "SGD", "Contour", "Lanczos", "Perturb", "Root", "Solver"]
