"""Gaussian processes: the function view of a linear model, with a kernel in place of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lapwing.gp import diagnosis
from lapwing.gp.classification import LaplaceGPPosterior
from lapwing.gp.kernels import (
    NTK,
    RBF,
    Columns,
    Constant,
    Custom,
    Hamming,
    Kernel,
    KernelMatrix,
    Linear,
    Matern,
    Periodic,
    Product,
    RationalQuadratic,
    Scaled,
    Sum,
    Tanimoto,
)
from lapwing.gp.recipe import GP
from lapwing.gp.regression.functions import FunctionSamples, PriorFunctions
from lapwing.gp.regression.posterior import GPPosterior
from lapwing.gp.thompson import Search, choose, maximise, thompson
from lapwing.gp.tuning import Centroids, Evidence, GPStep, Pathwise, Subset
from lapwing.ground.errors import ConfigError

if TYPE_CHECKING:
    from lapwing.gp.sklearn import GPRegressor

__all__ = [
    "GP",
    "NTK",
    "RBF",
    "Centroids",
    "Columns",
    "Constant",
    "Custom",
    "Evidence",
    "FunctionSamples",
    "GPPosterior",
    "GPRegressor",
    "GPStep",
    "Hamming",
    "Kernel",
    "KernelMatrix",
    "LaplaceGPPosterior",
    "Linear",
    "Matern",
    "Pathwise",
    "Periodic",
    "PriorFunctions",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "Search",
    "Subset",
    "Sum",
    "Tanimoto",
    "choose",
    "diagnosis",
    "maximise",
    "thompson",
]


def __getattr__(name: str) -> Any:
    """``GPRegressor`` when it is asked for: it needs scikit-learn, the rest does not."""
    if name == "GPRegressor":
        try:
            from lapwing.gp.sklearn import GPRegressor
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "sklearn":
                raise
            hint = "pip install lapwing[sklearn], or lw.GP(), which needs nothing else"
            raise ConfigError("scikit-learn, whose estimators GPRegressor is one of", str(error), hint) from error
        return GPRegressor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
