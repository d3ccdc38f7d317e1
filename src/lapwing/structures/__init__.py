"""How the posterior is held, and what it takes to compute it in that form; which weights are uncertain."""

from __future__ import annotations

from lapwing.structures.auto import AFFORDABLE, Auto
from lapwing.structures.base import FitTask, Structure
from lapwing.structures.diagonal import Diagonal
from lapwing.structures.ekfac import EKFAC
from lapwing.structures.full import Full
from lapwing.structures.kfac import KFAC
from lapwing.structures.low_rank import LowRank
from lapwing.structures.matrix_free import MatrixFree
from lapwing.structures.nystrom import Nystrom, NystromStopping
from lapwing.structures.sampled import Sampled
from lapwing.structures.tridiagonal import TridiagonalKFAC

__all__ = [
    "AFFORDABLE",
    "EKFAC",
    "KFAC",
    "Auto",
    "Diagonal",
    "FitTask",
    "Full",
    "LowRank",
    "MatrixFree",
    "Nystrom",
    "NystromStopping",
    "Sampled",
    "Structure",
    "TridiagonalKFAC",
]
