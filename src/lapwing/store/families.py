"""The classes whose instances a file may hold, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lapwing.ground.archive import Families, Records, Tensors
from lapwing.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood, Poisson
from lapwing.linalg import BlockDiagonal, Dense, Kronecker, LowRank, Operator, Structured, Sum
from lapwing.linalg import Diagonal as DiagonalMatrix
from lapwing.linalg.eigenbasis import Eigenbasis
from lapwing.linear.preconditioners import PivotedCholesky, Preconditioner, RankOne, Subsample, TopRows
from lapwing.linear.solvers import CG, SGD, Solver
from lapwing.methods.hessian_free.posterior import Amortised, Answers, ProbedTable, Table
from lapwing.methods.hessian_free.regularisers import Augmented, InSample, OutputSums, Regulariser, WeightSums
from lapwing.priors import DiagonalPrior, GPrior, Isotropic, Layerwise, Prior
from lapwing.structures import KFAC, Diagonal
from lapwing.structures import LowRank as LowRankStructure


def named(*kinds: type[Any]) -> dict[str, type[Any]]:
    """Classes by their names."""
    return {kind.__name__: kind for kind in kinds}


OPERATORS = named(BlockDiagonal, Dense, DiagonalMatrix, Kronecker, LowRank, Sum)

FAMILIES: Families = {
    Answers: named(Amortised, ProbedTable, Table),
    Likelihood: named(Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Poisson),
    Operator: OPERATORS,
    Preconditioner: named(Diagonal, KFAC, LowRankStructure, PivotedCholesky, RankOne, Subsample, TopRows),
    Prior: named(DiagonalPrior, GPrior, Isotropic, Layerwise),
    Regulariser: named(Augmented, InSample, OutputSums, WeightSums),
    Solver: named(CG, SGD),
    Structured: OPERATORS,
}

AGAIN: dict[Any, Any] = {Eigenbasis | None: None, tuple[Eigenbasis, Eigenbasis] | None: None}
"""What is computed again when it is first asked for, by the type of the field it fills."""


def records(
    tensors: Tensors | None = None, device: torch.device | str = "cpu", given: Mapping[Any, Any] | None = None
) -> Records:
    """Records of these classes."""
    return Records(Tensors() if tensors is None else tensors, device, FAMILIES, AGAIN | dict(given or {}))
