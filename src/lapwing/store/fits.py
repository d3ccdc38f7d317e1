"""What a file may hold: instances of these classes, and parts that belong together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from lapwing import ct
from lapwing.curvature.ggn import GGN, Curvature, EmpiricalFisher, Hessian, MCFisher, Noise
from lapwing.curvature.training_rows import FeatureRows, InputRows, TrainingRows
from lapwing.ground.errors import DataError
from lapwing.ground.files.archive import Tensors
from lapwing.ground.files.records import REPAIR, Families, Records
from lapwing.jacobian.layers.capture import Survey
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood, Poisson
from lapwing.linalg import BlockDiagonal, Dense, Kronecker, LowRank, Operator, Structured
from lapwing.linalg import Diagonal as DiagonalMatrix
from lapwing.linalg.operators.block_diagonal import Partition
from lapwing.linear.preconditioners import PivotedCholesky, Preconditioner, RankOne, Subsample, TopRows
from lapwing.linear.solvers import CG, SDD, SGD, AlternatingProjections, Cholesky, PrimalSGD, Solver
from lapwing.methods import gp
from lapwing.methods.hessian_free import HessianFreePosterior
from lapwing.methods.hessian_free.posterior import Amortised, Answers, Table
from lapwing.posteriors import FunctionPosterior, NystromPosterior, Posterior, SampledPosterior, WeightPosterior
from lapwing.posteriors.base import Fit
from lapwing.priors import DiagonalPrior, GPrior, Isotropic, Layerwise, Prior
from lapwing.structures import KFAC, Diagonal, Full, Nystrom, Sampled
from lapwing.structures import LowRank as LowRankStructure
from lapwing.structures.summed import Fits, Refit

AXES = 64
"""Most axes of a tensor."""

OUTPUTS = 2**40
"""Most outputs of one example."""


def check_fits(posterior: Posterior | HessianFreePosterior) -> None:
    """Refuses parts that do not belong together: sizes that differ, parameters the network has not.

    Raises:
        DataError: Naming what differs.
        ConfigError: If the prior is not for these weights.
    """
    survey = posterior.refit.model.survey if isinstance(posterior, HessianFreePosterior) else posterior.survey
    _check_survey(survey, posterior.network, posterior.likelihood)
    if isinstance(posterior, Posterior):
        posterior.prior.precisions(posterior.network.uncertain)
        posterior.prior.diagonal(posterior.network.uncertain, posterior.network.like)
    if isinstance(posterior, WeightPosterior):
        held, names = posterior.held, {name for part in posterior.held.partition for name in part}
        blocks = len(held.operator.blocks) if isinstance(held.operator, BlockDiagonal) else 0
        if len(held.partition) != blocks or (names and names != set(posterior.network.names)):
            raise DataError(f"parameters of {blocks} blocks", f"{len(held.partition)} groups of others", REPAIR)
    if isinstance(posterior, FunctionPosterior) and (misfit := posterior.rows.misfit(posterior.model)):
        raise DataError("training rows of the network", misfit, REPAIR)
    for name, shape, expected in _shapes(posterior, survey):
        if shape != expected:
            raise DataError(f"{name} of shape {list(expected)}", f"{list(shape)}", REPAIR)


def _check_survey(survey: Survey, network: Network, likelihood: Likelihood) -> None:
    names = [*(name for layer in survey.layers for name in layer.names), *survey.loose]
    if sorted(names) != sorted(network.names):
        raise DataError(f"a survey of {list(network.names)[:5]}", f"one of {names[:5]}", REPAIR)
    if not all(0 <= layer.axis < AXES for layer in survey.layers):
        raise DataError("an axis of the examples in every layer", f"{[layer.axis for layer in survey.layers]}", REPAIR)
    if min((*survey.output, *survey.floats), default=0) < 0 or math.prod(survey.output) > OUTPUTS:
        raise DataError("sizes of outputs and activations", f"{list(survey.output)}, {survey.floats}", REPAIR)
    if len(survey.output) != likelihood.event_dim + 1:
        raise DataError(
            f"outputs of {likelihood.event_dim + 1} axes an example, as {likelihood} has them",
            f"shape {list(survey.output)}",
            REPAIR,
        )


def _shapes(
    posterior: Posterior | HessianFreePosterior, survey: Survey
) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Names of parts, their shapes, and what these must be."""
    d = posterior.network.size
    match posterior:
        case WeightPosterior():
            yield "the curvature", posterior.held.operator.shape, (d, d)
        case FunctionPosterior():
            axes = posterior.rows.cotangents.shape[2:]  # in the order of the likelihood, not of the network
            yield "the cotangents", tuple(sorted(axes)), tuple(sorted(survey.output))
            groups, rows = posterior.prior.groups(posterior.network.uncertain)[1], len(posterior.rows)
            yield "the kernel", posterior.grams.shape, (groups, rows, rows)
        case NystromPosterior():
            yield "the span", posterior.changes.shape[:1], (d,)
        case SampledPosterior():
            yield "the draws", posterior.draws.shape[:1], (d,)
            yield "the noise", posterior.perturbation.prior.shape, tuple(posterior.draws.shape)
            for name, part in (("the residuals", posterior.solution.residual), ("their squares", posterior.squares)):
                if part is not None:
                    yield name, part.shape[-1:], posterior.draws.shape[1:]
        case HessianFreePosterior():
            yield "the prior", posterior.refit.prior.shape, (d,)
        case _:
            pass


def named(*kinds: type[Any]) -> dict[str, type[Any]]:
    """Classes by their names."""
    return {kind.__name__: kind for kind in kinds}


OPERATORS = named(BlockDiagonal, Dense, DiagonalMatrix, Kronecker, LowRank)

FAMILIES: Families = {
    Answers: named(Amortised, Table),
    gp.Kernel: named(
        gp.Constant, gp.Linear, gp.Matern, gp.Periodic, gp.Product, gp.RBF, gp.Scaled, gp.Sum, gp.Tanimoto
    ),
    Curvature: named(EmpiricalFisher, GGN, Hessian, MCFisher, Noise),
    Fit: named(Refit),
    Fits: named(Diagonal, Full, KFAC, LowRankStructure, Nystrom, Sampled),
    ct.Geometry: named(ct.FanBeam, ct.Parallel2d, ct.Parallel3d),
    Likelihood: named(Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Poisson),
    Operator: OPERATORS,
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
