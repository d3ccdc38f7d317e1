"""Matrices and what to do with them; nothing here knows of networks."""

from lapwing.linalg.blocks import BlockDiagonal
from lapwing.linalg.bounds import (
    log_determinant_lower,
    log_determinant_upper,
    shifted_log_determinant_lower,
    shifted_log_determinant_upper,
)
from lapwing.linalg.cg import conjugate_gradients
from lapwing.linalg.contour import Quadrature, contour_inverse_root, contour_root, inverse_root_rule
from lapwing.linalg.dense import Dense
from lapwing.linalg.eigenpairs import Eigenpairs, nystrom, randomised_eigenpairs, top_eigenpairs
from lapwing.linalg.interval import spectral_interval
from lapwing.linalg.kronecker import Kronecker
from lapwing.linalg.lanczos import apply_function
from lapwing.linalg.logdet import log_determinant
from lapwing.linalg.lowrank import LowRank
from lapwing.linalg.minres import shifted_minres
from lapwing.linalg.operator import FunctionOperator, Operator
from lapwing.linalg.pivoted import pivoted_cholesky
from lapwing.linalg.shifted_cg import shifted_conjugate_gradients
from lapwing.linalg.structured import Diagonal, Structured
from lapwing.linalg.sum import Sum
from lapwing.linalg.trace import hutch_plus_plus, hutchinson, xtrace

__all__ = [
    "BlockDiagonal",
    "Dense",
    "Diagonal",
    "Eigenpairs",
    "FunctionOperator",
    "Kronecker",
    "LowRank",
    "Operator",
    "Quadrature",
    "Structured",
    "Sum",
    "apply_function",
    "conjugate_gradients",
    "contour_inverse_root",
    "contour_root",
    "hutch_plus_plus",
    "hutchinson",
    "inverse_root_rule",
    "log_determinant",
    "log_determinant_lower",
    "log_determinant_upper",
    "nystrom",
    "pivoted_cholesky",
    "randomised_eigenpairs",
    "shifted_conjugate_gradients",
    "shifted_log_determinant_lower",
    "shifted_log_determinant_upper",
    "shifted_minres",
    "spectral_interval",
    "top_eigenpairs",
    "xtrace",
]
