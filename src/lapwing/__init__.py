"""lapwing: trustworthy error bars for a network that is already trained."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from lapwing.comparison import Comparison, compare
from lapwing.corruptions import corrupt, corruption_sweep
from lapwing.curvature.ggn import GGN, EmpiricalFisher, Hessian, MCFisher
from lapwing.curvature.invariance import normalised
from lapwing.curves import EvidenceCurve, evidence_curve
from lapwing.diagnosis import diagnose
from lapwing.errors import ConvergenceWarning, DataWarning, LapwingError
from lapwing.evaluation import Scores, evaluate
from lapwing.hessian_free import HessianFree, PerPoint, PreTrained, Probed, prune_uncertain
from lapwing.laplace import Laplace
from lapwing.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Poisson
from lapwing.marginal import MarginalLikelihood, train_marginal
from lapwing.nystrom import EarlyStopping
from lapwing.posteriors import MatrixFreePosterior, NystromPosterior, Posterior, SampledPosterior
from lapwing.precondition import PivotedCholesky, RankOne, Subsample, TopRows
from lapwing.priors import DiagonalPrior, GPrior, Isotropic, Layerwise
from lapwing.selection import All, LastLayer, Mask, Names, Subnetwork
from lapwing.solvers import CG, SGD, Contour, Lanczos, Perturb
from lapwing.store import load, read_header, save
from lapwing.structures import KFAC, Auto, Diagonal, Full, LowRank, MatrixFree, Nystrom, Sampled
from lapwing.tangent import Tangent
from lapwing.tuning import ELBO, EM, EvidenceGradient, MacKay, Mixup, Validation, tune

try:
    __version__ = version("lapwing")
except PackageNotFoundError:
    __version__ = "0.0.0"

__all__ = [
    "CG",
    "ELBO",
    "EM",
    "GGN",
    "KFAC",
    "SGD",
    "All",
    "Auto",
    "Bernoulli",
    "Categorical",
    "Comparison",
    "Contour",
    "ConvergenceWarning",
    "DataWarning",
    "Diagonal",
    "DiagonalPrior",
    "EarlyStopping",
    "EmpiricalFisher",
    "EvidenceCurve",
    "EvidenceGradient",
    "Full",
    "GPrior",
    "Gaussian",
    "Hessian",
    "HessianFree",
    "HeteroscedasticGaussian",
    "Isotropic",
    "Lanczos",
    "Laplace",
    "LapwingError",
    "LastLayer",
    "Layerwise",
    "LowRank",
    "MCFisher",
    "MacKay",
    "MarginalLikelihood",
    "Mask",
    "MatrixFree",
    "MatrixFreePosterior",
    "Mixup",
    "Names",
    "Nystrom",
    "NystromPosterior",
    "PerPoint",
    "Perturb",
    "PivotedCholesky",
    "Poisson",
    "Posterior",
    "PreTrained",
    "Probed",
    "RankOne",
    "Sampled",
    "SampledPosterior",
    "Scores",
    "Subnetwork",
    "Subsample",
    "Tangent",
    "TopRows",
    "Validation",
    "compare",
    "corrupt",
    "corruption_sweep",
    "diagnose",
    "evaluate",
    "evidence_curve",
    "load",
    "normalised",
    "prune_uncertain",
    "read_header",
    "save",
    "train_marginal",
    "tune",
]
