"""lapwing: trustworthy error bars for a network that is already trained.

The everyday words are here; everything else is in the module it belongs to, as ``lw.solvers.CG`` and ``lw.gp.Matern``.
Adapters to other libraries are loaded when they are asked for, as ``lw.sklearn``.
"""

from __future__ import annotations

from types import ModuleType

from lapwing import baselines, comparison, ct, gp, metrics, posteriors, store, structures
from lapwing.comparison import Comparison, compare
from lapwing.curvature.kinds import GGN, EmpiricalFisher, Hessian, MCFisher
from lapwing.evaluation import corruptions, diagnosis
from lapwing.evaluation.diagnosis import diagnose
from lapwing.evaluation.evaluate import Scores, evaluate
from lapwing.gp import GP
from lapwing.ground.errors import ConvergenceWarning, DataWarning, LapwingError, NetworkWarning, PrecisionWarning
from lapwing.integrations import ADAPTERS, adapter
from lapwing.jacobian.network.scale_invariance import normalised
from lapwing.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    NegativeBinomial,
    Poisson,
)
from lapwing.linear import preconditioners, solvers
from lapwing.methods import hessian_free, marginal
from lapwing.methods.hessian_free import HessianFree
from lapwing.methods.laplace import Laplace
from lapwing.methods.marginal import train_marginal
from lapwing.posteriors import Posterior
from lapwing.predictive import Classification, Counts, Regression
from lapwing.priors import DiagonalPrior, GPrior, Isotropic, Layerwise, Prior
from lapwing.show import plots
from lapwing.show.report.health import Health, health
from lapwing.store import export, load, save
from lapwing.store.files import installed
from lapwing.structures import EKFAC, KFAC, Auto, Diagonal, Full, LowRank, MatrixFree, Nystrom, Sampled
from lapwing.structures.selection import All, LastLayer, Mask, Names, Subnetwork
from lapwing.tuning import ELBO, EM, EvidenceGradient, MacKay, Mixup, Validation, tune

__version__ = installed()

__all__ = [
    "EKFAC",
    "ELBO",
    "EM",
    "GGN",
    "GP",
    "KFAC",
    "All",
    "Auto",
    "Bernoulli",
    "Categorical",
    "Classification",
    "Comparison",
    "ConvergenceWarning",
    "Counts",
    "DataWarning",
    "Diagonal",
    "DiagonalPrior",
    "EmpiricalFisher",
    "EvidenceGradient",
    "Full",
    "GPrior",
    "Gaussian",
    "Health",
    "Hessian",
    "HessianFree",
    "HeteroscedasticGaussian",
    "Isotropic",
    "Laplace",
    "LapwingError",
    "LastLayer",
    "Layerwise",
    "Likelihood",
    "LowRank",
    "MCFisher",
    "MacKay",
    "Mask",
    "MatrixFree",
    "Mixup",
    "Names",
    "NegativeBinomial",
    "NetworkWarning",
    "Nystrom",
    "Poisson",
    "Posterior",
    "PrecisionWarning",
    "Prior",
    "Regression",
    "Sampled",
    "Scores",
    "Subnetwork",
    "Validation",
    "baselines",
    "compare",
    "comparison",
    "corruptions",
    "ct",
    "diagnose",
    "diagnosis",
    "evaluate",
    "export",
    "gp",
    "health",
    "hessian_free",
    "load",
    "marginal",
    "metrics",
    "normalised",
    "plots",
    "posteriors",
    "preconditioners",
    "save",
    "solvers",
    "store",
    "structures",
    "train_marginal",
    "tune",
]


def __getattr__(name: str) -> ModuleType:
    """The adapters to other libraries, such as ``lw.sklearn``, when one is asked for."""
    if name in ADAPTERS:
        return adapter(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
