"""Gaussian processes: the function view of a linear model, with a kernel in place of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lapwing.ground.errors import ConfigError
from lapwing.methods.gp.combined import Product, Scaled, Sum
from lapwing.methods.gp.evidence import Evidence
from lapwing.methods.gp.kernels import Custom, Kernel
from lapwing.methods.gp.laplace import LaplaceProcess
from lapwing.methods.gp.matrix import KernelMatrix
from lapwing.methods.gp.ntk import NTK
from lapwing.methods.gp.paths import FunctionSamples, PriorFunctions
from lapwing.methods.gp.pathwise import Pathwise
from lapwing.methods.gp.polynomial import Constant, Linear
from lapwing.methods.gp.process import Process
from lapwing.methods.gp.recipe import GP
from lapwing.methods.gp.stationary import RBF, Matern, Periodic
from lapwing.methods.gp.subsets import Centroids, Subset
from lapwing.methods.gp.tanimoto import Tanimoto
from lapwing.methods.gp.thompson import Search, choose, maximise, thompson

if TYPE_CHECKING:
    from lapwing.methods.gp.regressor import GPRegressor

__all__ = [
    "GP",
    "NTK",
    "RBF",
    "Centroids",
    "Constant",
    "Custom",
    "Evidence",
    "FunctionSamples",
    "GPRegressor",
    "Kernel",
    "KernelMatrix",
    "LaplaceProcess",
    "Linear",
    "Matern",
    "Pathwise",
    "Periodic",
    "PriorFunctions",
    "Process",
    "Product",
    "Scaled",
    "Search",
    "Subset",
    "Sum",
    "Tanimoto",
    "choose",
    "maximise",
    "thompson",
]


def __getattr__(name: str) -> Any:
    """``GPRegressor`` when it is asked for: it needs scikit-learn, the rest does not."""
    if name == "GPRegressor":
        try:
            from lapwing.methods.gp.regressor import GPRegressor
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "sklearn":
                raise
            hint = "pip install lapwing[sklearn], or lw.GP(), which needs nothing else"
            raise ConfigError("scikit-learn, whose estimators GPRegressor is one of", str(error), hint) from error
        return GPRegressor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
