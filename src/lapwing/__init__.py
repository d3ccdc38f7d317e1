"""lapwing: trustworthy error bars for a network that is already trained."""

from __future__ import annotations

from lapwing import ct, gp, metrics
from lapwing.comparison import Comparison, compare
from lapwing.curvature.kinds import GGN, EmpiricalFisher, Hessian, MCFisher
from lapwing.evaluation import baselines, corruptions, diagnosis
from lapwing.evaluation.corruptions import corrupt, corruption_sweep
from lapwing.evaluation.diagnosis import diagnose
from lapwing.evaluation.scores import Scores, evaluate
from lapwing.gp import GP
from lapwing.ground.errors import ConvergenceWarning, DataWarning, LapwingError, NetworkWarning
from lapwing.jacobian.network.scale_invariance import normalised
from lapwing.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, NegativeBinomial, Poisson
from lapwing.linear import preconditioners, solvers
from lapwing.linear.preconditioners import PivotedCholesky, RankOne, Subsample, TopRows
from lapwing.linear.solvers import CG, SDD, SGD, AlternatingProjections, Cholesky, Contour, Lanczos, Perturb, PrimalSGD
from lapwing.linear.tangent import Tangent
from lapwing.methods import hessian_free, marginal
from lapwing.methods.hessian_free import HessianFree, PerPoint, PreTrained, Probed, prune_uncertain
from lapwing.methods.laplace import Laplace
from lapwing.methods.marginal import MarginalLikelihood, train_marginal
from lapwing.posteriors import MatrixFreePosterior, NystromPosterior, Posterior, SampledPosterior
from lapwing.priors import DiagonalPrior, GPrior, Isotropic, Layerwise
from lapwing.store import load, read_header, save
from lapwing.store.files import installed
from lapwing.structures import KFAC, Auto, Diagonal, Full, LowRank, MatrixFree, Nystrom, NystromStopping, Sampled
from lapwing.structures.weights import All, LastLayer, Mask, Names, Subnetwork
from lapwing.tuning import ELBO, EM, EvidenceGradient, MacKay, Mixup, Validation, tune

__version__ = installed()

__all__ = [
    "CG",
    "ELBO",
    "EM",
    "GGN",
    "GP",
    "KFAC",
    "SDD",
    "SGD",
    "All",
    "AlternatingProjections",
    "Auto",
    "Bernoulli",
    "Categorical",
    "Cholesky",
    "Comparison",
    "Contour",
    "ConvergenceWarning",
    "DataWarning",
    "Diagonal",
    "DiagonalPrior",
    "EmpiricalFisher",
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
    "NegativeBinomial",
    "NetworkWarning",
    "Nystrom",
    "NystromPosterior",
    "NystromStopping",
    "PerPoint",
    "Perturb",
    "PivotedCholesky",
    "Poisson",
    "Posterior",
    "PreTrained",
    "PrimalSGD",
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
    "baselines",
    "compare",
    "corrupt",
    "corruption_sweep",
    "corruptions",
    "ct",
    "diagnose",
    "diagnosis",
    "evaluate",
    "gp",
    "hessian_free",
    "load",
    "marginal",
    "metrics",
    "normalised",
    "preconditioners",
    "prune_uncertain",
    "read_header",
    "save",
    "solvers",
    "train_marginal",
    "tune",
]
