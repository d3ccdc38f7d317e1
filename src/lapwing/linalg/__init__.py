"""Matrices and what to do with them; nothing here knows of networks."""

from lapwing.linalg.cg import conjugate_gradients
from lapwing.linalg.contour import Quadrature, contour_inverse_root, inverse_root_rule, spectral_interval
from lapwing.linalg.dense import Dense
from lapwing.linalg.eigenpairs import Eigenpairs, randomised_eigenpairs, top_eigenpairs
from lapwing.linalg.functions import apply_function, log_determinant, shifted_log_determinant_upper
from lapwing.linalg.kronecker import BlockDiagonal, Kronecker
from lapwing.linalg.lowrank import LowRank, nystrom
from lapwing.linalg.operator import FunctionOperator, Operator
from lapwing.linalg.pivoted import pivoted_cholesky
from lapwing.linalg.shifted import shifted_solve
from lapwing.linalg.structured import Diagonal, Structured

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
    "apply_function",
    "conjugate_gradients",
    "contour_inverse_root",
    "inverse_root_rule",
    "log_determinant",
    "nystrom",
    "pivoted_cholesky",
    "randomised_eigenpairs",
    "shifted_log_determinant_upper",
    "shifted_solve",
    "spectral_interval",
    "top_eigenpairs",
]
