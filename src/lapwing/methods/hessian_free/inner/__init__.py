"""Inner solvers: what fits the network again under each perturbation."""

from __future__ import annotations

from lapwing.methods.hessian_free.inner.base import Inner, Refitted
from lapwing.methods.hessian_free.inner.descent import Descent
from lapwing.methods.hessian_free.inner.lbfgs import LBFGS
from lapwing.methods.hessian_free.inner.newton import NewtonCG

__all__ = ["LBFGS", "Descent", "Inner", "NewtonCG", "Refitted"]
