"""Which classes a field may hold where it names an abstract one, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lapwing import ct, gp
from lapwing.curvature.kinds import GGN, Curvature, EmpiricalFisher, Hessian, MCFisher, SampledGGN
from lapwing.curvature.last_layer.features import FeatureRows
from lapwing.curvature.training_rows import InputRows, TrainingRows
from lapwing.ground.files.archive import Tensors
from lapwing.ground.files.records import Families, Records
from lapwing.jacobian.layers.capture import HEADS
from lapwing.jacobian.layers.linear import OuterProducts
from lapwing.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    NegativeBinomial,
    Poisson,
    StudentT,
)
from lapwing.linalg import BlockDiagonal, Dense, Kronecker, KroneckerChain, LowRank, Operator, Structured
from lapwing.linalg import Diagonal as DiagonalMatrix
from lapwing.linalg.operators.block_diagonal import Partition
from lapwing.linear.preconditioners import PivotedCholesky, Preconditioner, RankOne, Subsample, TopRows
from lapwing.linear.solvers import CG, SDD, SGD, AlternatingProjections, Cholesky, PrimalSGD, Solver
from lapwing.methods.hessian_free import HessianFreePosterior
from lapwing.methods.hessian_free.posterior import AmortisedCovariances, OutputCovariances, PointCovariances
from lapwing.posteriors import FunctionPosterior, NystromPosterior, SampledPosterior, WeightPosterior
from lapwing.posteriors.base import FitRecipe
from lapwing.priors import DiagonalPrior, GPrior, Isotropic, Layerwise, Prior
from lapwing.structures import EKFAC, KFAC, Diagonal, Full, Nystrom, Sampled, TridiagonalKFAC
from lapwing.structures import LowRank as LowRankStructure
from lapwing.structures.base import Structure, StructureFit


def named(*kinds: type[Any]) -> dict[str, type[Any]]:
    """Classes by their names."""
    return {kind.__name__: kind for kind in kinds}


POSTERIORS = named(
    WeightPosterior, FunctionPosterior, NystromPosterior, SampledPosterior, HessianFreePosterior, ct.ImagePosterior
)
"""What a file may hold that stands on a network."""

OPERATORS = named(BlockDiagonal, Dense, DiagonalMatrix, Kronecker, KroneckerChain, LowRank)

FAMILIES: Families = {
    OutputCovariances: named(AmortisedCovariances, PointCovariances),
    gp.Kernel: named(
        gp.Columns,
        gp.Constant,
        gp.Hamming,
        gp.Linear,
        gp.Matern,
        gp.Periodic,
        gp.Product,
        gp.RBF,
        gp.RationalQuadratic,
        gp.Scaled,
        gp.Sum,
        gp.Tanimoto,
    ),
    Curvature: named(EmpiricalFisher, GGN, Hessian, MCFisher, SampledGGN),
    FitRecipe: named(StructureFit),
    Structure: named(Diagonal, EKFAC, Full, KFAC, LowRankStructure, Nystrom, Sampled, TridiagonalKFAC),
    ct.Geometry: named(ct.FanBeam, ct.Parallel2d, ct.Parallel3d),
    Likelihood: named(Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, NegativeBinomial, Poisson, StudentT),
    Operator: OPERATORS,
    OuterProducts: named(*HEADS),
    Preconditioner: named(Diagonal, KFAC, LowRankStructure, PivotedCholesky, RankOne, Subsample, TopRows),
    Prior: named(DiagonalPrior, GPrior, Isotropic, Layerwise),
    Solver: named(AlternatingProjections, CG, Cholesky, PrimalSGD, SDD, SGD),
    Structured: OPERATORS,
    TrainingRows: named(FeatureRows, InputRows),
}

AGAIN: dict[Any, Any] = {Dense | None: None, Kronecker | None: None, Partition | None: None}
"""What is computed again when it is first asked for, by the type of the field it fills."""


def records(
    tensors: Tensors | None = None, device: torch.device | str = "cpu", given: Mapping[Any, Any] | None = None
) -> Records:
    """Records of these classes."""
    return Records(Tensors() if tensors is None else tensors, device, FAMILIES, AGAIN | dict(given or {}))
