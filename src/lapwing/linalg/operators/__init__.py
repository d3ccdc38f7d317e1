"""Matrices known by their products, and the structures that answer every question exactly."""

from lapwing.linalg.operators.base import FunctionOperator, Operator, Structured
from lapwing.linalg.operators.block_diagonal import BlockDiagonal
from lapwing.linalg.operators.chain import KroneckerChain
from lapwing.linalg.operators.dense import Dense
from lapwing.linalg.operators.diagonal import Diagonal
from lapwing.linalg.operators.eigenbasis import Eigenbasis
from lapwing.linalg.operators.kronecker import Kronecker
from lapwing.linalg.operators.low_rank import LowRank

__all__ = [
    "BlockDiagonal",
    "Dense",
    "Diagonal",
    "Eigenbasis",
    "FunctionOperator",
    "Kronecker",
    "KroneckerChain",
    "LowRank",
    "Operator",
    "Structured",
]
