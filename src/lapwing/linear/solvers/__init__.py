"""Ways to solve with a posterior precision, and to draw from its inverse."""

from __future__ import annotations

from lapwing.linear.solvers.cg import CG, Solver
from lapwing.linear.solvers.roots import Contour, Lanczos, Perturb, Root
from lapwing.linear.solvers.sgd import SGD

__all__ = ["CG", "SGD", "Contour", "Lanczos", "Perturb", "Root", "Solver"]
