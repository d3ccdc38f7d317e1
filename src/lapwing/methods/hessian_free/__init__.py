"""Hessian-free Laplace: variances of the outputs from refits of the network under small perturbations."""

from __future__ import annotations

from lapwing.methods.hessian_free.fits import Objective, PerPoint, PreTrained, Probed, Signs
from lapwing.methods.hessian_free.inner import Descent, Inner, NewtonCG, Refitted
from lapwing.methods.hessian_free.posterior import HessianFreePosterior
from lapwing.methods.hessian_free.probed import Variances
from lapwing.methods.hessian_free.recipe import HessianFree
from lapwing.methods.hessian_free.responses import Linearity
from lapwing.methods.hessian_free.weights import WeightUncertainty, prune_uncertain, weight_uncertainty

__all__ = [
    "Descent",
    "HessianFree",
    "HessianFreePosterior",
    "Inner",
    "Linearity",
    "NewtonCG",
    "Objective",
    "PerPoint",
    "PreTrained",
    "Probed",
    "Refitted",
    "Signs",
    "Variances",
    "WeightUncertainty",
    "prune_uncertain",
    "weight_uncertainty",
]
