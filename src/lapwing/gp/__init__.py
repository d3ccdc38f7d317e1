"""Gaussian processes: the function view of a linear model, with a kernel in place of a network."""

from __future__ import annotations

from lapwing.gp import diagnosis
from lapwing.gp.classification import LaplaceGPPosterior
from lapwing.gp.kernels import (
    NTK,
    RBF,
    Columns,
    Constant,
    Custom,
    Hamming,
    Kernel,
    KernelMatrix,
    Linear,
    Matern,
    Periodic,
    Product,
    RationalQuadratic,
    Scaled,
    Sum,
    Tanimoto,
)
from lapwing.gp.recipe import GP
from lapwing.gp.regression.functions import FunctionSamples, PriorFunctions
from lapwing.gp.regression.posterior import GPPosterior
from lapwing.gp.student_t import StudentTGPPosterior
from lapwing.gp.thompson import Search, choose, maximise, thompson
from lapwing.gp.tuning import Centroids, Evidence, GPStep, Pathwise, Subset

__all__ = [
    "GP",
    "NTK",
    "RBF",
    "Centroids",
    "Columns",
    "Constant",
    "Custom",
    "Evidence",
    "FunctionSamples",
    "GPPosterior",
    "GPStep",
    "Hamming",
    "Kernel",
    "KernelMatrix",
    "LaplaceGPPosterior",
    "Linear",
    "Matern",
    "Pathwise",
    "Periodic",
    "PriorFunctions",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "Search",
    "StudentTGPPosterior",
    "Subset",
    "Sum",
    "Tanimoto",
    "choose",
    "diagnosis",
    "maximise",
    "thompson",
]
