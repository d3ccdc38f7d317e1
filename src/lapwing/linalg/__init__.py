"""Matrices and what to do with them; nothing here knows of networks."""

from lapwing.linalg.blocks import BlockDiagonal
from lapwing.linalg.dense import Dense
from lapwing.linalg.kronecker import Kronecker
from lapwing.linalg.lowrank import LowRank
from lapwing.linalg.operator import FunctionOperator, Operator
from lapwing.linalg.structured import Diagonal, Structured
from lapwing.linalg.sum import Sum

__all__ = [
    "BlockDiagonal",
    "Dense",
    "Diagonal",
    "FunctionOperator",
    "Kronecker",
    "LowRank",
    "Operator",
    "Structured",
    "Sum",
]
