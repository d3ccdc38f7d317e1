"""Covariance functions, their random features, and matrices of them that are never written out."""

from __future__ import annotations

from lapwing.gp.kernels.base import Kernel, Kernels, Product, Scaled, Sum
from lapwing.gp.kernels.columns import Columns
from lapwing.gp.kernels.custom import Custom
from lapwing.gp.kernels.hamming import Hamming
from lapwing.gp.kernels.matrix import KernelMatrix
from lapwing.gp.kernels.ntk import NTK
from lapwing.gp.kernels.polynomial import Constant, Linear
from lapwing.gp.kernels.rational_quadratic import RationalQuadratic
from lapwing.gp.kernels.stationary import RBF, Matern, Periodic
from lapwing.gp.kernels.tanimoto import Tanimoto

__all__ = [
    "NTK",
    "RBF",
    "Columns",
    "Constant",
    "Custom",
    "Hamming",
    "Kernel",
    "KernelMatrix",
    "Kernels",
    "Linear",
    "Matern",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "Sum",
    "Tanimoto",
]
