"""lapwing: trustworthy error bars for a network that is already trained.

The everyday words are here; everything else is in the module it belongs to, as ``lw.solvers.CG`` and ``lw.gp.Matern``.
Adapters to other libraries are loaded when they are asked for, as ``lw.sklearn``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lapwing import baselines, comparison, ct, gp, metrics, posteriors, store, structures
    from lapwing.comparison import Comparison, compare
    from lapwing.curvature.kinds import GGN, EmpiricalFisher, Hessian, MCFisher
    from lapwing.evaluation import corruptions, diagnosis
    from lapwing.evaluation.diagnosis import diagnose
    from lapwing.evaluation.evaluate import Scores, evaluate
    from lapwing.gp import GP
    from lapwing.ground.errors import ConvergenceWarning, DataWarning, LapwingError, NetworkWarning, PrecisionWarning
    from lapwing.jacobian.network.augmentation import TestTimeAugmentation
    from lapwing.jacobian.network.scale_invariance import normalised
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
    from lapwing.structures import EKFAC, KFAC, Auto, Diagonal, Full, LowRank, MatrixFree, Nystrom, Sampled
    from lapwing.structures.selection import All, LastLayer, Mask, Names, Subnetwork
    from lapwing.tuning import ELBO, EM, EvidenceGradient, MacKay, Mixup, Validation, tune

    __version__: str

HOMES: dict[str, tuple[str, ...]] = {
    "lapwing.comparison": (
        "Comparison",
        "compare",
    ),
    "lapwing.curvature.kinds": (
        "GGN",
        "EmpiricalFisher",
        "Hessian",
        "MCFisher",
    ),
    "lapwing.evaluation": (
        "corruptions",
        "diagnosis",
    ),
    "lapwing.evaluation.diagnosis": ("diagnose",),
    "lapwing.evaluation.evaluate": (
        "Scores",
        "evaluate",
    ),
    "lapwing.gp": ("GP",),
    "lapwing.ground.errors": (
        "ConvergenceWarning",
        "DataWarning",
        "LapwingError",
        "NetworkWarning",
        "PrecisionWarning",
    ),
    "lapwing.jacobian.network.augmentation": ("TestTimeAugmentation",),
    "lapwing.jacobian.network.scale_invariance": ("normalised",),
    "lapwing.likelihoods": (
        "Bernoulli",
        "Categorical",
        "Gaussian",
        "HeteroscedasticGaussian",
        "Likelihood",
        "NegativeBinomial",
        "Poisson",
        "StudentT",
    ),
    "lapwing.linear": (
        "preconditioners",
        "solvers",
    ),
    "lapwing.methods": (
        "hessian_free",
        "marginal",
    ),
    "lapwing.methods.hessian_free": ("HessianFree",),
    "lapwing.methods.laplace": ("Laplace",),
    "lapwing.methods.marginal": ("train_marginal",),
    "lapwing.posteriors": ("Posterior",),
    "lapwing.predictive": (
        "Classification",
        "Counts",
        "Regression",
    ),
    "lapwing.priors": (
        "DiagonalPrior",
        "GPrior",
        "Isotropic",
        "Layerwise",
        "Prior",
    ),
    "lapwing.show": ("plots",),
    "lapwing.show.report.health": (
        "Health",
        "health",
    ),
    "lapwing.store": (
        "export",
        "load",
        "save",
    ),
    "lapwing.structures": (
        "EKFAC",
        "KFAC",
        "Auto",
        "Diagonal",
        "Full",
        "LowRank",
        "MatrixFree",
        "Nystrom",
        "Sampled",
    ),
    "lapwing.structures.selection": (
        "All",
        "LastLayer",
        "Mask",
        "Names",
        "Subnetwork",
    ),
    "lapwing.tuning": (
        "ELBO",
        "EM",
        "EvidenceGradient",
        "MacKay",
        "Mixup",
        "Validation",
        "tune",
    ),
}
"""The module of each name, imported when the name is first used: ``import lapwing`` alone loads not even torch. Editors
read the same from the imports above."""

FLOORS = (
    "baselines",
    "comparison",
    "ct",
    "curvature",
    "evaluation",
    "gp",
    "ground",
    "integrations",
    "jacobian",
    "likelihoods",
    "linalg",
    "linear",
    "methods",
    "metrics",
    "moments",
    "posteriors",
    "predictive",
    "priors",
    "show",
    "store",
    "structures",
    "tuning",
)
"""The folders below, each reached as ``lw.linalg``."""

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
    "StudentT",
    "Subnetwork",
    "TestTimeAugmentation",
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


def __getattr__(name: str) -> Any:
    """A name of ``__all__``, a floor, or an adapter such as ``lw.sklearn``, when it is asked for."""
    home = next((module for module, names in HOMES.items() if name in names), None)
    if home is not None:
        found = member(home, name)
    elif name in FLOORS:
        found = import_module(f"lapwing.{name}")
    elif name == "__version__":
        found = import_module("lapwing.ground.version").installed()
    else:
        adapters = import_module("lapwing.integrations")
        if name not in adapters.ADAPTERS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return adapters.adapter(name)
    globals()[name] = found
    return found


def member(home: str, name: str) -> Any:
    """What a module holds by a name, or the module of that name in its folder."""
    module = import_module(home)
    return getattr(module, name) if hasattr(module, name) else import_module(f"{home}.{name}")


def __dir__() -> list[str]:
    """What can be asked for."""
    return sorted({*globals(), *__all__, *FLOORS})
