"""Matrices and what to do with them; nothing here knows of networks."""

from lapwing.linalg.bounds import shifted_log_determinant_upper
from lapwing.linalg.cg import conjugate_gradients
from lapwing.linalg.contour import Quadrature, contour_inverse_root, inverse_root_rule, spectral_interval
from lapwing.linalg.eigenpairs import Eigenpairs, randomised_eigenpairs, top_eigenpairs
from lapwing.linalg.log_determinant import log_determinant
from lapwing.linalg.matrix_functions import apply_function
from lapwing.linalg.operators import (
    BlockDiagonal,
    Dense,
    Diagonal,
    FunctionOperator,
    Kronecker,
    KroneckerChain,
    LowRank,
    Operator,
    Structured,
)
from lapwing.linalg.pivoted import pivoted_cholesky
from lapwing.linalg.shifted import shifted_solve
from lapwing.linalg.sketching import nystrom

__all__ = [
    "BlockDiagonal",
    "Dense",
    "Diagonal",
    "Eigenpairs",
    "FunctionOperator",
    "Kronecker",
    "KroneckerChain",
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
