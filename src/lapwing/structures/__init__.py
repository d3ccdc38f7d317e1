"""How the posterior is held, and what it takes to compute it in that form."""

from __future__ import annotations

from typing import TypeAlias

from lapwing.structures.full import AFFORDABLE, Auto, Full
from lapwing.structures.lowrank import LowRank
from lapwing.structures.nystrom import Nystrom
from lapwing.structures.solved import MatrixFree, Sampled
from lapwing.structures.summed import KFAC, Diagonal, Task

Structure: TypeAlias = Auto | Full | Diagonal | KFAC | LowRank | MatrixFree | Nystrom | Sampled
"""How the posterior is held."""

__all__ = [
    "AFFORDABLE",
    "KFAC",
    "Auto",
    "Diagonal",
    "Full",
    "LowRank",
    "MatrixFree",
    "Nystrom",
    "Sampled",
    "Structure",
    "Task",
]
