"""The calls of laplace-torch 0.3, with its names, shapes and units, computed by lapwing.

``Laplace(model, "classification", subset_of_weights=..., hessian_structure=...)`` is fitted in place, as there;
``la.posterior`` is lapwing's own posterior at its hyper-parameters. With equal settings the numbers of the two
libraries are equal.
"""

from __future__ import annotations

import abc
import logging
import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, TypeAlias, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.kinds import GGN, Curvature, EmpiricalFisher, Hessian, MCFisher
from lapwing.ground.data.sources import Unpack
from lapwing.ground.errors import (
    ConfigError,
    DataWarning,
    NumericalError,
    ShapeError,
    UnsupportedError,
    check_option,
    check_positive,
    warn,
)
from lapwing.ground.precision import wide
from lapwing.ground.shared import Shared
from lapwing.integrations.callbacks import in_order
from lapwing.likelihoods import Categorical, Gaussian, Likelihood
from lapwing.linalg import Diagonal, Structured
from lapwing.linear.log_det_ratio import Complexity, complexity_of
from lapwing.methods import laplace as methods
from lapwing.posteriors import WeightPosterior
from lapwing.predictive import Moments, laplace_bridge
from lapwing.priors import DiagonalPrior, Isotropic, Prior
from lapwing.store import load, save
from lapwing.structures import KFAC, Full, LowRank, Structure
from lapwing.structures import Diagonal as DiagonalStructure
from lapwing.structures.selection import All, LastLayer, Mask, Selection

logger = logging.getLogger(__name__)

Scalars: TypeAlias = Any
"""A number, or a vector of them; anything else is refused in a sentence."""

PREDICTIVES = ("glm", "nn")

LINKS = ("probit", "mc", "bridge", "bridge_norm")

LIKELIHOODS = ("classification", "regression", "reward_modeling")

ABSENT_MODULES = {
    "laplace.utils": "lw.Subnetwork()",
    "laplace.utils.enums": 'strings, such as "classification", "all" and "kron"',
    "laplace.utils.subnetmask": "lw.Subnetwork()",
    "laplace.curvature": "backend= with the name of a class as a string, or lw.Laplace(..., curvature=lw.GGN())",
    "laplace.marglik_training": "lw.train_marginal",
}
"""Modules of laplace-torch that the facade has not, and what there is instead."""

ABSENT_NAMES = {
    "marglik_training": "lw.train_marginal",
    "FunctionalLaplace": "lw.Laplace(likelihood, structure=lw.Full(view='functions'))",
    "FunctionalLLLaplace": "lw.Laplace(likelihood, structure=lw.Full(view='functions'), weights=lw.LastLayer())",
    "SubsetOfWeights": 'subset_of_weights="all"',
    "HessianStructure": 'hessian_structure="kron"',
    "PredType": 'pred_type="glm"',
    "LinkApprox": 'link_approx="probit"',
    "TuningMethod": 'method="marglik"',
    "PriorStructure": 'prior_structure="scalar"',
}
"""The same of names in it."""

KEPT = ("loss", "n_data", "n_outputs", "likelihood", "temperature", "enable_backprop")
"""Plain values of a ``state_dict``."""


@final
@dataclass(frozen=True, eq=False)
class KroneckerPrecision:
    """A posterior precision in Kronecker products, with the calls of laplace-torch's ``KronDecomposed``.

    Args:
        operator: The precision.
        dtype: Of what is returned.
    """

    operator: Structured
    dtype: torch.dtype

    def to_matrix(self, exponent: float = 1.0) -> Float[Tensor, "d d"]:
        """The matrix, to a power.

        Args:
            exponent: The power; others than 1 take its eigenvectors, for small networks.
        """
        dense = wide(self.operator.dense())
        if exponent != 1.0:
            eigenvalues, vectors = torch.linalg.eigh(dense)
            dense = (vectors * eigenvalues**exponent) @ vectors.mT
        return dense.to(self.dtype)

    def diag(self, exponent: float = 1.0) -> Float[Tensor, " d"]:
        """The diagonal of that matrix."""
        return self.to_matrix(exponent).diagonal()

    def logdet(self) -> Float[Tensor, ""]:
        """The log determinant."""
        return self.operator.logdet().to(self.dtype)

    def inv_square_form(self, jacobians: Float[Tensor, "n c d"]) -> Float[Tensor, "n c c"]:
        """``J P⁻¹ Jᵀ`` of each example."""
        return square_form(self.operator, jacobians)


class BaseLaplace(abc.ABC):
    """The arguments and calls that all approximations have; see laplace-torch's ``ParametricLaplace``.

    Args:
        model: The trained network; used in eval mode and left as it is.
        likelihood: ``"classification"``, ``"regression"`` or ``"reward_modeling"``, which is fitted as the one and
            predicts as the other.
        sigma_noise: Standard deviation of the targets, in their unit; 1 for classes.
        prior_precision: One for all weights, one a parameter tensor, or one a weight.
        prior_mean: Where the prior is centred: one for all weights, or one a weight. It has a part in the evidence
            alone.
        temperature: Of the likelihood: its curvature counts ``1 / temperature`` times.
        enable_backprop: Whether predictions keep their graph to inputs that require a gradient.
        dict_key_x: Key of the inputs in a batch that is a mapping.
        dict_key_y: Key of the targets there.
        backend: Which curvature, by the name of a class: with ``"EF"`` in it the empirical Fisher matrix, with
            ``"Hessian"`` the Hessian, else the generalised Gauss-Newton matrix. What computes it is lapwing.
        backend_kwargs: ``stochastic=True`` for sampled labels, ``low_rank`` for the rank of ``"lowrank"``.
        asdl_fisher_kwargs: Must be ``None``.

    Raises:
        ConfigError: If an argument has a value that makes no sense; it is a ``ValueError``, as there.
    """

    subset: ClassVar[str]
    held: ClassVar[str]
    additive: ClassVar[bool] = True
    """Whether ``fit(override=False)`` adds the curvature of more data."""

    def __init__(
        self,
        model: nn.Module,
        likelihood: str,
        sigma_noise: Scalars = 1.0,
        prior_precision: Scalars = 1.0,
        prior_mean: Scalars = 0.0,
        temperature: float = 1.0,
        enable_backprop: bool = False,
        dict_key_x: str = "input_ids",
        dict_key_y: str = "labels",
        backend: type | str | None = None,
        backend_kwargs: Mapping[str, Any] | None = None,
        asdl_fisher_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        check_option("likelihood", likelihood, LIKELIHOODS)
        if asdl_fisher_kwargs is not None:
            raise ConfigError("no asdl_fisher_kwargs", f"{asdl_fisher_kwargs}", "leaving them out")
        self.model = model
        self.likelihood = likelihood
        self.enable_backprop = enable_backprop
        self.dict_key_x = dict_key_x
        self.dict_key_y = dict_key_y
        self.backend = backend
        self.backend_kwargs = dict(backend_kwargs or {})
        self.params = self._uncertain_parameters()
        self.loss: Tensor = torch.zeros((), device=self._device, dtype=self._dtype)
        self.n_data = 0
        self.n_outputs = 0
        self._fitted: WeightPosterior | None = None
        self._posterior: WeightPosterior | None = None
        self._complexities: dict[int, Complexity] = {}
        self._keyed = False
        self.temperature = temperature
        self.sigma_noise = sigma_noise
        self.prior_precision = prior_precision
        self.prior_mean = prior_mean

    # what it is about

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    def _uncertain_parameters(self) -> list[Tensor]:
        """The parameters whose weights are uncertain; none where they are not known before the fit."""
        return [value for value in self.model.parameters() if value.requires_grad]

    @property
    def n_params(self) -> int:
        """Weights of the parameters that are uncertain."""
        return sum(value.numel() for value in self.params)

    @property
    def n_layers(self) -> int:
        """Parameter tensors that are uncertain."""
        return len(self.params)

    @property
    def _size(self) -> int:
        """Uncertain weights d."""
        return self.n_params

    @property
    def mean(self) -> Tensor:
        """The trained weights once it was fitted, before that the mean of the prior."""
        if self._fitted is None:
            return self.prior_mean
        return self._fitted.network.weights.detach()

    @property
    def _weights(self) -> Tensor:
        """Means of the uncertain weights; before a fit those of the prior."""
        return self.mean

    # hyper-parameters

    @property
    def prior_precision(self) -> Float[Tensor, " p"]:
        """Prior precisions: one, one a parameter tensor, or one a weight; they can be set."""
        return self._prior_precision

    @prior_precision.setter
    def prior_precision(self, value: Scalars) -> None:
        values = self._numbers("prior precision", value)
        if self.params and len(values) not in self._lengths():
            lengths = " or ".join(map(str, sorted(self._lengths())))
            raise ConfigError(f"{lengths} prior precisions", f"{len(values)} of them", "a single number")
        self._prior_precision = values
        self._posterior = None

    @property
    def prior_mean(self) -> Tensor:
        """Means of the prior: one, or one a weight; they can be set."""
        return self._prior_mean

    @prior_mean.setter
    def prior_mean(self, value: Scalars) -> None:
        values = self._numbers("prior mean", value)
        if self.params and len(values) not in (1, self._size):
            raise ConfigError(f"1 or {self._size} prior means", f"{len(values)} of them", "a single number")
        self._prior_mean = values if isinstance(value, Tensor) and value.ndim else values[0]

    @property
    def sigma_noise(self) -> Float[Tensor, ""]:
        """Standard deviation of the targets; it can be set."""
        return self._sigma_noise

    @sigma_noise.setter
    def sigma_noise(self, value: Scalars) -> None:
        values = self._numbers("noise standard deviation", value)
        if len(values) != 1:
            raise ConfigError("one noise standard deviation", f"{len(values)} of them", "a single number")
        if self.likelihood != "regression" and float(values[0]) != 1.0:
            raise ConfigError("sigma_noise=1 for classes", f"{float(values[0]):g}", "temperature=")
        self._sigma_noise = values[0]
        self._posterior = None

    @property
    def temperature(self) -> float:
        """Temperature of the likelihood; it can be set."""
        return self._temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        check_positive("temperature", value, "1.0")
        self._temperature = value
        self._posterior = None

    def _numbers(self, name: str, value: object) -> Float[Tensor, " p"]:
        """A number or a vector of them as a vector, its graph kept.

        Raises:
            ConfigError: If it is neither.
        """
        if isinstance(value, Real):
            return torch.tensor([float(value)], device=self._device, dtype=self._dtype)
        if not isinstance(value, Tensor) or value.ndim > 1:
            got = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.40}"
            raise ConfigError(f"a {name}, a number or a vector of them", got, "1.0")
        return value.reshape(-1).to(self._device, self._dtype)

    def _lengths(self) -> set[int]:
        """How many prior precisions there may be."""
        return {1, self.n_layers, self._size}

    @property
    def prior_precision_diag(self) -> Float[Tensor, " d"]:
        """Prior precision of each uncertain weight."""
        values = self.prior_precision
        return values[self._groups(len(values))]

    def _groups(self, count: int) -> Int[Tensor, " d"]:
        """Which of the prior precisions each weight has."""
        if count == 1:
            groups = torch.zeros(self._size, dtype=torch.long)
        elif count == self._size:
            groups = torch.arange(self._size)
        else:
            parts = [torch.full((value.numel(),), place) for place, value in enumerate(self.params)]
            groups = torch.cat(parts)
        return groups.to(self._device)

    @property
    def _H_factor(self) -> Float[Tensor, ""]:
        """What the curvature of the unit likelihood is multiplied by, ``1 / (σ² T)``."""
        return 1 / self.sigma_noise.square() / self.temperature

    # fitting

    def fit(self, train_loader: Any, override: bool = True, progress_bar: bool = False) -> None:
        """Fits the curvature at the weights of the network.

        Args:
            train_loader: A loader of ``(x, y)`` or of mappings; read in the order of its data set, each example once.
            override: Whether to forget earlier data; else their curvature and this one are added.
            progress_bar: Whether to show a progress bar at once.

        Raises:
            ConfigError: If curvatures cannot be added.
            ShapeError: If outputs or targets have the wrong shape.
        """
        if not (override or self.additive):
            raise ConfigError("override=True", "override=False", f"one loader of all data for {type(self).__name__}")
        data = in_order(train_loader)
        module, unpack = self._readable(data)
        recipe = methods.Laplace(
            self._unit_likelihood(),
            structure=self._structure(),
            weights=self._selection(),
            curvature=self._curvature_kind(),
        )
        progress = True if progress_bar else None
        fitted = cast(WeightPosterior, recipe.fit(module, data, unpack=unpack, progress=progress))
        self._take(fitted, keep=not override and self._fitted is not None)

    def _take(self, fitted: WeightPosterior, *, keep: bool) -> None:
        """Hold a fit at unit noise; added to what there is, or in its place."""
        totals = fitted.totals
        loss = 0.5 * totals.misfit if self.likelihood == "regression" else totals.nll
        examples = totals.examples
        if keep and self._fitted is not None:
            loss += float(self.loss)
            examples += self.n_data
            together = self._fitted.curvature.operator.pooled(fitted.curvature.operator)
            fitted = replace(fitted, curvature=replace(fitted.curvature, operator=together))
        self._fitted = fitted
        self._posterior = None
        self._complexities = {}
        self.loss = torch.tensor(loss, device=self._device, dtype=self._dtype)
        self.n_data = examples
        self.n_outputs = fitted.model.event[-1]
        self.params = self._parameters_of(fitted)
        self.prior_precision = self.prior_precision  # checked, now that the number of weights is known
        self.prior_mean = self.prior_mean

    def _parameters_of(self, fitted: WeightPosterior) -> list[Tensor]:
        """The parameters whose weights are uncertain, of which a fit may know more."""
        return self.params

    def _readable(self, data: Any) -> tuple[nn.Module, Unpack | None]:
        """The network and what splits a batch: a mapping goes into it whole, as there."""
        first = next(iter(data))
        self._keyed = isinstance(first, Mapping)
        if not self._keyed:
            return self.model, None
        missing = [key for key in (self.dict_key_x, self.dict_key_y) if key not in first]
        if missing:
            raise KeyError(f"{missing[0]!r} is not in a batch; it has {sorted(first)}. Try dict_key_x=, dict_key_y=.")
        return WholeMapping(self.model), self._split

    def _split(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor]:
        """Inputs and targets of a batch that is a mapping."""
        return self._inputs(batch), batch[self.dict_key_y]

    def _inputs(self, x: Any) -> Any:
        """Inputs as lapwing takes them, which keeps the graph of those that ask for their gradient."""
        if isinstance(x, Tensor):
            return x if self.enable_backprop else x.detach()
        if not isinstance(x, Mapping):
            return x
        return {key: value for key, value in x.items() if key != self.dict_key_y}

    def _unit_likelihood(self) -> Likelihood:
        """The likelihood at unit noise, at which the curvature is computed."""
        return Gaussian(1.0, shared=True) if self.likelihood == "regression" else Categorical()

    def _curvature_kind(self) -> Curvature:
        """Which curvature the backend's name stands for."""
        name = self.backend if isinstance(self.backend, str) else getattr(self.backend, "__name__", "")
        if "EF" in name:
            return EmpiricalFisher()
        if "Hessian" in name and self.held != "lowrank":
            return Hessian()
        if self.backend_kwargs.get("stochastic"):
            return MCFisher(samples=int(self.backend_kwargs.get("num_samples", 1)))
        return GGN()

    @abc.abstractmethod
    def _structure(self) -> Structure:
        """How the precision is held."""

    def _selection(self) -> Selection:
        """Which weights are uncertain."""
        return All()

    # the posterior

    @property
    def posterior(self) -> WeightPosterior:
        """The posterior of lapwing at these hyper-parameters.

        Raises:
            AttributeError: If nothing was fitted.
        """
        if self._posterior is None:
            fitted = self._known()
            operator = fitted.curvature.operator.scaled(1 / self.temperature)
            self._posterior = replace(
                fitted,
                curvature=replace(fitted.curvature, operator=operator),
                prior=self._prior(),
                likelihood=self._likelihood_now(),
                shared_precision=Shared[BlockedCurvature](),
                shared_evidence=Shared[Any](),
            )
        return self._posterior

    def _known(self) -> WeightPosterior:
        """The fit at unit noise.

        Raises:
            AttributeError: If nothing was fitted.
        """
        if self._fitted is None:
            raise AttributeError("Expected a fitted approximation. Got one that is not. Try fit(train_loader).")
        return self._fitted

    def _prior(self) -> Prior:
        """The prior as lapwing has it."""
        values = self.prior_precision.detach()
        if len(values) == 1:
            return Isotropic(float(values))
        return DiagonalPrior(self.prior_precision_diag.detach())

    def _likelihood_now(self) -> Likelihood:
        """The likelihood with the noise it has now."""
        if self.likelihood != "regression":
            return self._known().fitted
        return Gaussian(float(self.sigma_noise.detach()) ** -2, shared=True)

    @property
    def _precision(self) -> Structured:
        """The posterior precision, or before a fit that of the prior."""
        if self._fitted is None:
            return Diagonal(self.prior_precision_diag.detach())
        return self.posterior.precision_operator

    @property
    @abc.abstractmethod
    def posterior_precision(self) -> Any:
        """The posterior precision, as laplace-torch has it for this structure."""

    # evidence

    @property
    def log_likelihood(self) -> Float[Tensor, ""]:
        """Log likelihood of the training data, nats, over the temperature; differentiable in the noise."""
        fit = -self._H_factor * self.loss
        if self.likelihood != "regression":
            return fit
        return fit - self.n_data * self.n_outputs * torch.log(self.sigma_noise * math.sqrt(2 * math.pi))

    @property
    def scatter(self) -> Float[Tensor, ""]:
        """``(θ* - μ₀)ᵀ A (θ* - μ₀)``, differentiable in the prior precisions."""
        deviation = self._weights - self.prior_mean
        return (deviation * self.prior_precision_diag) @ deviation

    @property
    def log_det_prior_precision(self) -> Float[Tensor, ""]:
        """``log det A``."""
        return self.prior_precision_diag.log().sum()

    @property
    def log_det_posterior_precision(self) -> Float[Tensor, ""]:
        """``log det Λ``."""
        return self.log_det_ratio + self.log_det_prior_precision

    @property
    def log_det_ratio(self) -> Float[Tensor, ""]:
        """``log det Λ / det A``, differentiable in the prior precisions and the noise."""
        if self._fitted is None:
            return torch.zeros((), device=self._device, dtype=self._dtype)
        values = self.prior_precision
        complexity = self._complexity(len(values))
        return complexity.log_det_ratio(wide(values), wide(self._H_factor)).to(self._device, self._dtype)

    def _complexity(self, count: int) -> Complexity:
        """The log determinant as a function of so many precisions and the noise; its decomposition is kept."""
        if count not in self._complexities:
            self._complexities[count] = complexity_of(self._known().curvature.operator, self._groups(count).cpu())
        return self._complexities[count]

    def log_marginal_likelihood(
        self, prior_precision: Scalars | None = None, sigma_noise: Scalars | None = None
    ) -> Float[Tensor, ""]:
        """Log evidence at the trained weights, nats; differentiable in what is given, which replaces what was.

        Args:
            prior_precision: New prior precisions.
            sigma_noise: New noise standard deviation.

        Raises:
            AttributeError: If nothing was fitted.
            ConfigError: If a noise is given for classes.
        """
        self._known()
        if prior_precision is not None:
            self.prior_precision = prior_precision
        if sigma_noise is not None:
            if self.likelihood != "regression":
                raise ConfigError("no sigma_noise for classes", f"{sigma_noise!r:.40}", "leaving it out")
            self.sigma_noise = sigma_noise
        return self.log_likelihood - 0.5 * (self.log_det_ratio + self.scatter)

    def square_norm(self, value: Float[Tensor, " d"]) -> Float[Tensor, ""]:
        """``(θ - θ*)ᵀ Λ (θ - θ*)``."""
        precision = self._precision
        deviation = (value - self._weights).to(precision.dtype)
        return (deviation @ (precision @ deviation)).to(value)

    def log_prob(self, value: Float[Tensor, " d"], normalized: bool = True) -> Float[Tensor, ""]:
        """Log density of weights, nats; before a fit under the prior.

        Args:
            value: Weights.
            normalized: Whether its constants are in it.
        """
        exponent = -0.5 * self.square_norm(value)
        if not normalized:
            return exponent
        return exponent + 0.5 * (self.log_det_posterior_precision - self._size * math.log(2 * math.pi))

    # predictions

    def __call__(
        self,
        x: Any,
        pred_type: str = "glm",
        joint: bool = False,
        link_approx: str = "probit",
        n_samples: int = 100,
        diagonal_output: bool = False,
        generator: torch.Generator | None = None,
        fitting: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The posterior predictive.

        Args:
            x: Inputs of n examples.
            pred_type: ``"glm"``, the network made linear in its weights, or ``"nn"``, networks with drawn weights.
            joint: Whether to return the covariance of all outputs together, of real targets.
            link_approx: ``"probit"``, ``"mc"``, ``"bridge"`` or ``"bridge_norm"``; ``"nn"`` has ``"mc"`` alone.
            n_samples: Draws.
            diagonal_output: Whether covariances between outputs are left out.
            generator: Source of randomness.
            fitting: Of reward models, whether it is asked for while they are fitted: probabilities.

        Returns:
            Probabilities ``[n, c]``; of real targets means ``[n, c]`` and covariances ``[n, c, c]`` of the outputs,
            without the noise of the targets: ``[n, c]`` where they are diagonal or of drawn networks, ``[nc]`` and
            ``[nc, nc]`` where they are joint.

        Raises:
            ConfigError: If there is no such predictive or link, or not together.
        """
        check_asked(pred_type, link_approx)
        real = self.likelihood == "regression" or (self.likelihood == "reward_modeling" and not fitting)
        if pred_type == "nn":
            drawn = self._networks(x, n_samples, generator)
            return (drawn.mean(0), drawn.var(0)) if real else drawn.softmax(-1).mean(0)
        if real:
            return self._real(x, joint, diagonal_output)
        if link_approx == "mc":
            return self._linearised(x, n_samples, diagonal_output, generator).softmax(-1).mean(0)
        if link_approx == "bridge_norm":
            return laplace_bridge(self._moments(x), normalise=True)
        link: Any = link_approx
        prediction: Any = self.posterior.predict(self._inputs(x), link, epistemic=False)
        return prediction.probs

    def _real(self, x: Any, joint: bool, diagonal_output: bool) -> tuple[Tensor, Tensor]:
        """Means and covariances of the outputs."""
        if joint:
            together: Any = self.posterior.outputs(self._inputs(x), joint=True)
            size = together.mean.numel()
            return together.mean.flatten(), together.covariance.reshape(size, size)
        moments = self._moments(x)
        return moments.mean, moments.variance if diagonal_output else moments.covariance

    def _moments(self, x: Any) -> Moments:
        """Means and covariances of the outputs of each example."""
        return cast(Moments, self.posterior.outputs(self._inputs(x)))

    def _linearised(
        self, x: Any, samples: int, diagonal_output: bool, generator: torch.Generator | None
    ) -> Float[Tensor, "s n c"]:
        """Drawn outputs of the network made linear, each example by itself."""
        moments = self._moments(x)
        if diagonal_output:
            moments = Moments(moments.mean, torch.diag_embed(moments.variance))
        return moments.sample(samples, generator=generator)

    def _networks(self, x: Any, samples: int, generator: torch.Generator | None) -> Float[Tensor, "s n c"]:
        """Outputs of networks with drawn weights."""
        drawn: Any = self.posterior.outputs(self._inputs(x), linearised=False, samples=samples, generator=generator)
        return drawn.values

    def sample(self, n_samples: int = 100, generator: torch.Generator | None = None) -> Float[Tensor, "s d"]:
        """Draws of the uncertain weights.

        Args:
            n_samples: Draws s.
            generator: Source of randomness; ``None`` draws from PyTorch's global one.
        """
        return self.posterior.sample(n_samples, generator=generator)

    def functional_samples(
        self,
        x: Any,
        pred_type: str = "glm",
        n_samples: int = 100,
        diagonal_output: bool = False,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "s n c"]:
        """Draws of the outputs; arguments as of a call."""
        check_asked(pred_type, "mc")
        if pred_type == "nn":
            return self._networks(x, n_samples, generator)
        return self._linearised(x, n_samples, diagonal_output, generator)

    def predictive_samples(
        self,
        x: Any,
        pred_type: str = "glm",
        n_samples: int = 100,
        diagonal_output: bool = False,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "s n c"]:
        """The same through the inverse link: probabilities, or outputs of real targets, without their noise."""
        drawn = self.functional_samples(x, pred_type, n_samples, diagonal_output, generator)
        return drawn if self.likelihood == "regression" else drawn.softmax(-1)

    def predictive(self, x: Any, pred_type: str, link_approx: str, n_samples: int) -> Tensor | tuple[Tensor, Tensor]:
        """The same as a call."""
        return self(x, pred_type=pred_type, link_approx=link_approx, n_samples=n_samples)

    def functional_variance(self, Js: Float[Tensor, "n c d"]) -> Float[Tensor, "n c c"]:
        """``J Λ⁻¹ Jᵀ`` of each example, from its Jacobian.

        Raises:
            ShapeError: If it is none in the uncertain weights.
        """
        self._check_jacobians(Js)
        return square_form(self._precision, Js)

    def functional_covariance(self, Js: Float[Tensor, "n c d"]) -> Float[Tensor, "nc nc"]:
        """``J Λ⁻¹ Jᵀ`` of all examples together, from their Jacobians.

        Raises:
            ShapeError: If they are none in the uncertain weights.
        """
        self._check_jacobians(Js)
        return square_form(self._precision, Js.flatten(0, 1)[None])[0]

    def _check_jacobians(self, Js: object) -> None:
        """Refuse what is no Jacobian in the uncertain weights."""
        if not isinstance(Js, Tensor) or Js.ndim != 3 or Js.shape[-1] != self._size:
            got = f"{list(Js.shape)}" if isinstance(Js, Tensor) else f"a {type(Js).__name__}"
            raise ShapeError(f"Jacobians [n, c, {self._size}]", got, "those in the uncertain weights, in their order")

    # tuning

    def optimize_prior_precision(
        self,
        pred_type: str = "glm",
        method: str = "marglik",
        n_steps: int = 100,
        lr: float = 1e-1,
        init_prior_prec: Scalars = 1.0,
        prior_structure: str = "scalar",
        val_loader: Any = None,
        loss: Callable[..., Any] | None = None,
        log_prior_prec_min: float = -4,
        log_prior_prec_max: float = 4,
        grid_size: int = 100,
        link_approx: str = "probit",
        n_samples: int = 100,
        verbose: bool = False,
        progress_bar: bool = False,
        log_prior_prec_base: float = 10.0,
    ) -> None:
        """Chooses the prior precision, by the evidence or on held-out data.

        Args:
            pred_type: As of a call; for ``"gridsearch"``.
            method: ``"marglik"``, Adam on the evidence, or ``"gridsearch"`` on held-out data.
            n_steps: Steps of Adam.
            lr: Its learning rate.
            init_prior_prec: Where it starts.
            prior_structure: ``"scalar"``, ``"layerwise"`` or ``"diag"``, where it starts from a number.
            val_loader: Held-out data.
            loss: What is least: a function of probabilities and targets, or of means, covariances and targets; or a
                metric of torchmetrics. ``None`` for the negative log density of the targets, in both cases: the squared
                error, which laplace-torch takes for real targets, is the same for every prior.
            log_prior_prec_min: Exponent of the least precision tried.
            log_prior_prec_max: Exponent of the largest.
            grid_size: How many are tried.
            link_approx: As of a call.
            n_samples: As of a call.
            verbose: Whether the precision is shown in the log.
            progress_bar: Has no effect.
            log_prior_prec_base: Base of the exponents.

        Raises:
            AttributeError: If nothing was fitted.
            ConfigError: If there is no such method, or no held-out data for it.
            NumericalError: If the loss is finite at no precision of the grid.

        Warns:
            DataWarning: If the best precision is an end of the grid, or all are as good.

        Cost:
            ``"marglik"``: one decomposition of the curvature. ``"gridsearch"``: ``grid_size`` predictions of the
            held-out data.
        """
        check_option("pred_type", pred_type, PREDICTIVES)
        check_option("method", method, ("marglik", "gridsearch"))
        self._known()
        if method == "marglik":
            check_option("prior_structure", prior_structure, ("scalar", "layerwise", "diag"))
            self._climb(n_steps, lr, init_prior_prec, prior_structure)
            self._tell(verbose)
            return
        if val_loader is None:
            raise ConfigError("val_loader= for gridsearch", "none", "a loader of held-out data")
        exponents = torch.linspace(log_prior_prec_min, log_prior_prec_max, grid_size, dtype=torch.float64)
        grid = [log_prior_prec_base**exponent for exponent in exponents.tolist()]
        losses = list[float]()
        for precision in grid:
            self.prior_precision = precision
            losses.append(self._held_out_loss(val_loader, loss, pred_type, link_approx, n_samples))
        finite = [value if math.isfinite(value) else math.inf for value in losses]
        best = finite.index(min(finite))
        self.prior_precision = grid[best]
        check_inside(grid, finite, best)
        self._tell(verbose)

    def _tell(self, verbose: bool) -> None:
        """Log the prior precision, where that is wanted."""
        if verbose:
            logger.info("prior precision %s", self.prior_precision.tolist())

    def _climb(self, steps: int, lr: float, start: Scalars, prior_structure: str) -> None:
        """Adam on the log precisions."""
        self.prior_precision = start
        if len(self.prior_precision) == 1:
            count = {"scalar": 1, "layerwise": self.n_layers, "diag": self._size}[prior_structure]
            self.prior_precision = self.prior_precision.detach().repeat(count)
        log_precisions = self.prior_precision.detach().log().requires_grad_()
        optimiser = torch.optim.Adam([log_precisions], lr=lr)
        with torch.enable_grad():
            for _ in range(steps):
                optimiser.zero_grad()
                (-self.log_marginal_likelihood(prior_precision=log_precisions.exp())).backward()
                optimiser.step()
        self.prior_precision = log_precisions.detach().exp()

    def _held_out_loss(
        self, loader: Any, loss: Callable[..., Any] | None, pred_type: str, link_approx: str, samples: int
    ) -> float:
        """The loss on held-out data at the prior there is."""
        outputs = list[tuple[Tensor, ...]]()
        targets = list[Tensor]()
        for x, y in self._pairs(loader):
            out = self(x, pred_type=pred_type, link_approx=link_approx, n_samples=samples, fitting=True)
            outputs.append(out if isinstance(out, tuple) else (out,))
            targets.append(y.to(self._device))
        update = getattr(loss, "update", None)
        if update is not None:
            metric: Any = loss
            metric.reset()
            for out, y in zip(outputs, targets, strict=True):
                metric.update(out[0], y)
            return float(metric.compute().sum())
        parts = [torch.cat(part) for part in zip(*outputs, strict=True)]
        function = self._nll if loss is None else loss
        return float(function(*parts, torch.cat(targets)))

    def _pairs(self, loader: Any) -> Iterator[tuple[Any, Tensor]]:
        """Inputs and targets of each batch."""
        for batch in loader:
            if isinstance(batch, Mapping):
                yield batch, batch[self.dict_key_y]
            else:
                yield batch[0].to(self._device), batch[1]

    def _nll(self, *given: Tensor) -> Tensor:
        """Mean negative log density of the targets, nats."""
        if self.likelihood != "regression":
            probs, labels = given
            return -probs.log().gather(-1, labels[..., None]).mean()
        mean, covariance, y = given
        variance = covariance.diagonal(dim1=-2, dim2=-1) if covariance.ndim > mean.ndim else covariance
        total = variance + self.sigma_noise.square()
        return 0.5 * ((y - mean).square() / total + (2 * math.pi * total).log()).sum(-1).mean()

    # files

    def state_dict(self) -> dict[str, Any]:
        """What is held, as plain values and tensors: ``torch.save`` it; ``torch.load`` needs no code for it."""
        fitted = self._known()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "posterior.safetensors"
            save(fitted, file)
            held = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8)
        return {
            "cls_name": type(self).__name__,
            "mean": self.mean,
            "posterior": held,
            "keyed": self._keyed,
            "prior_mean": self.prior_mean,
            "prior_precision": self.prior_precision.detach(),
            "sigma_noise": self.sigma_noise.detach(),
            **{name: getattr(self, name) for name in KEPT},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes what ``state_dict`` gave, around the network of the fit.

        Args:
            state_dict: What it gave.

        Raises:
            ConfigError: If it is of another approximation, likelihood or number of weights.
            MismatchError: If the network has other weights.
        """
        own: dict[str, object] = {"cls_name": type(self).__name__, "likelihood": self.likelihood}
        if self.params:
            own["weights"] = self.n_params
        theirs = {**state_dict, "weights": len(state_dict["mean"])}
        for name, value in own.items():
            if theirs[name] != value:
                raise ConfigError(f"the {name} {value}", f"{theirs[name]}", "the same arguments as when it was saved")
        if self.temperature != state_dict["temperature"]:
            warnings.warn(f"the temperature becomes {state_dict['temperature']}", stacklevel=2)
        self._keyed = bool(state_dict["keyed"])
        module = WholeMapping(self.model) if self._keyed else self.model
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "posterior.safetensors"
            file.write_bytes(bytes(state_dict["posterior"].cpu().numpy()))
            self._take(cast(WeightPosterior, load(file, module)), keep=False)
        for name in ("loss", "n_data", "n_outputs"):
            setattr(self, name, state_dict[name])
        for name in ("temperature", "sigma_noise", "prior_precision", "prior_mean"):
            setattr(self, name, state_dict[name])


class FullPrecision(BaseLaplace):
    """What an approximation with a dense precision has besides."""

    held = "full"

    def _structure(self) -> Structure:
        return Full(view="weights")

    @property
    def H(self) -> Float[Tensor, "d d"]:
        """The curvature at unit noise; 0 before a fit."""
        if self._fitted is None:
            return torch.zeros(self._size, self._size, device=self._device, dtype=self._dtype)
        return self._fitted.curvature.operator.dense().to(self._dtype)

    @property
    def posterior_precision(self) -> Float[Tensor, "d d"]:
        """Λ."""
        self._known()
        return self._precision.dense().to(self._dtype)

    @property
    def posterior_covariance(self) -> Float[Tensor, "d d"]:
        """Λ⁻¹."""
        precision = self._precision
        eye = torch.eye(self._size, device=self._device, dtype=precision.dtype)
        return precision.solve(eye).to(self._dtype)

    @property
    def posterior_scale(self) -> Float[Tensor, "d d"]:
        """W with ``W Wᵀ = Λ⁻¹``."""
        return self._precision.inverse_root().dense().to(self._dtype)


class DiagonalPrecision(BaseLaplace):
    """What an approximation with a diagonal precision has besides."""

    held = "diag"

    def _structure(self) -> Structure:
        return DiagonalStructure()

    @property
    def H(self) -> Float[Tensor, " d"]:
        """The curvature at unit noise; 0 before a fit."""
        if self._fitted is None:
            return torch.zeros(self._size, device=self._device, dtype=self._dtype)
        return self._fitted.curvature.operator.diagonal().to(self._dtype)

    @property
    def posterior_precision(self) -> Float[Tensor, " d"]:
        """The diagonal of Λ."""
        self._known()
        return self._precision.diagonal().to(self._dtype)

    @property
    def posterior_variance(self) -> Float[Tensor, " d"]:
        """Variances of the weights."""
        return 1 / self.posterior_precision

    @property
    def posterior_scale(self) -> Float[Tensor, " d"]:
        """Standard deviations of the weights."""
        return self.posterior_precision.rsqrt()


class KroneckerFactors(BaseLaplace):
    """What an approximation in Kronecker products has besides, a bias apart from its weight."""

    held = "kron"

    def _structure(self) -> Structure:
        return KFAC(bias="separate")

    def _lengths(self) -> set[int]:
        return {1, self.n_layers}

    @property
    def H(self) -> KroneckerPrecision:
        """The curvature at unit noise."""
        return KroneckerPrecision(self._known().curvature.operator, self._dtype)

    @property
    def posterior_precision(self) -> KroneckerPrecision:
        """Λ."""
        self._known()
        return KroneckerPrecision(self._precision, self._dtype)


@final
class FullLaplace(FullPrecision):
    """All weights, a dense precision."""

    subset = "all"


@final
class DiagLaplace(DiagonalPrecision):
    """All weights, a diagonal precision."""

    subset = "all"


@final
class KronLaplace(KroneckerFactors):
    """All weights, Kronecker products."""

    subset = "all"


@final
class LowRankLaplace(BaseLaplace):
    """All weights, the leading eigenpairs of the generalised Gauss-Newton matrix; there it is those of the Hessian."""

    subset = "all"
    held = "lowrank"
    additive = False

    def _structure(self) -> Structure:
        return LowRank(int(self.backend_kwargs.get("low_rank", 10)))

    @property
    def H(self) -> tuple[Float[Tensor, "d r"], Float[Tensor, " r"]]:
        """Eigenvectors and eigenvalues of the curvature at unit noise."""
        root = self._known().curvature.operator.known_root
        if root is None:
            raise UnsupportedError("a curvature of low rank", "one that is held otherwise", "la.posterior")
        vectors, singular, _ = torch.linalg.svd(root, full_matrices=False)
        return vectors.to(self._dtype), singular.square().to(self._dtype)

    @property
    def posterior_precision(self) -> tuple[tuple[Tensor, Tensor], Float[Tensor, " d"]]:
        """``(U, l), p`` with ``Λ = U diag(l) Uᵀ + diag(p)``."""
        vectors, eigenvalues = self.H
        return (vectors, self._H_factor * eigenvalues), self.prior_precision_diag


class LLLaplace(BaseLaplace):
    """What an approximation of the last layer has besides.

    Args:
        model: As in ``BaseLaplace``.
        likelihood: As in ``BaseLaplace``.
        *args: As in ``BaseLaplace``, in its order.
        last_layer_name: Name of the module; ``None`` finds it at the fit.
        feature_reduction: Must be ``None``: what the network does with its features is found at the fit.
        **options: As in ``BaseLaplace``.
    """

    subset = "last_layer"
    additive = False

    def __init__(
        self,
        model: nn.Module,
        likelihood: str,
        *args: Any,
        last_layer_name: str | None = None,
        feature_reduction: str | None = None,
        **options: Any,
    ) -> None:
        if feature_reduction is not None:
            raise ConfigError("no feature_reduction", repr(feature_reduction), "leaving it out")
        self._last_layer_name = last_layer_name
        super().__init__(model, likelihood, *args, **options)

    def _uncertain_parameters(self) -> list[Tensor]:
        if self._last_layer_name is None:
            return []
        return list(self.model.get_submodule(self._last_layer_name).parameters())

    def _parameters_of(self, fitted: WeightPosterior) -> list[Tensor]:
        network = fitted.network
        named = dict(network.module.named_parameters(remove_duplicate=False))
        return [named[name] for name in network.names]

    @property
    def mean(self) -> Any:
        """See ``BaseLaplace``; ``None`` where nothing was fitted and no layer named."""
        return super().mean if self.params else None

    def _selection(self) -> Selection:
        if self._last_layer_name is None:
            return LastLayer()
        return LastLayer(f"model.{self._last_layer_name}" if self._keyed else self._last_layer_name)

    def state_dict(self) -> dict[str, Any]:
        """See ``BaseLaplace.state_dict``."""
        return {**super().state_dict(), "last_layer_name": self._last_layer_name}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """See ``BaseLaplace.load_state_dict``."""
        other = state_dict.get("last_layer_name")
        if other != self._last_layer_name:
            raise ConfigError(f"the last_layer_name {self._last_layer_name!r}", repr(other), "the same arguments")
        super().load_state_dict(state_dict)


@final
class FullLLLaplace(LLLaplace, FullPrecision):
    """The last layer, a dense precision."""


@final
class DiagLLLaplace(LLLaplace, DiagonalPrecision):
    """The last layer, a diagonal precision."""


@final
class KronLLLaplace(LLLaplace, KroneckerFactors):
    """The last layer, Kronecker products."""


class SubnetLaplace(BaseLaplace):
    """What an approximation of single weights has besides.

    Args:
        model: As in ``BaseLaplace``.
        likelihood: As in ``BaseLaplace``.
        subnetwork_indices: Which weights, of the flat vector of those that require a gradient; ``int64``.
        *args: As in ``BaseLaplace``, in its order.
        **options: As in ``BaseLaplace``.
    """

    subset = "subnetwork"
    additive = False

    def __init__(self, model: nn.Module, likelihood: str, subnetwork_indices: Any, *args: Any, **options: Any) -> None:
        total = sum(value.numel() for value in model.parameters() if value.requires_grad)
        check_indices(subnetwork_indices, total)
        self.subnetwork_indices = subnetwork_indices.sort().values.to(next(model.parameters()).device)
        super().__init__(model, likelihood, *args, **options)

    @property
    def n_params_subnet(self) -> int:
        """Uncertain weights."""
        return len(self.subnetwork_indices)

    @property
    def _size(self) -> int:
        return self.n_params_subnet

    def _lengths(self) -> set[int]:
        return {1, self._size}

    @property
    def mean(self) -> Tensor:
        """All trained weights once it was fitted, before that the mean of the prior."""
        if self._fitted is None:
            return self.prior_mean
        return parameters_to_vector(self.params).detach()

    @property
    def mean_subnet(self) -> Float[Tensor, " d"]:
        """Trained weights of the subnetwork."""
        return self.mean[self.subnetwork_indices]

    @property
    def _weights(self) -> Tensor:
        return self.prior_mean if self._fitted is None else self.mean_subnet

    def _selection(self) -> Selection:
        mask = torch.zeros(self.n_params, dtype=torch.bool)
        mask[self.subnetwork_indices.cpu()] = True
        return Mask(mask)

    def sample(self, n_samples: int = 100, generator: torch.Generator | None = None) -> Float[Tensor, "s m"]:
        """Draws of all weights, in which those of the subnetwork differ."""
        return self.assemble_full_samples(super().sample(n_samples, generator))

    def assemble_full_samples(self, subnet_samples: Float[Tensor, "s d"]) -> Float[Tensor, "s m"]:
        """All weights, from draws of the subnetwork's."""
        samples = self.mean.repeat(len(subnet_samples), 1)
        samples[:, self.subnetwork_indices] = subnet_samples
        return samples


@final
class FullSubnetLaplace(SubnetLaplace, FullPrecision):
    """Single weights, a dense precision."""


@final
class DiagSubnetLaplace(SubnetLaplace, DiagonalPrecision):
    """Single weights, a diagonal precision."""


KINDS: tuple[type[BaseLaplace], ...] = (
    FullLaplace,
    KronLaplace,
    DiagLaplace,
    LowRankLaplace,
    FullLLLaplace,
    KronLLLaplace,
    DiagLLLaplace,
    FullSubnetLaplace,
    DiagSubnetLaplace,
)


def Laplace(
    model: nn.Module,
    likelihood: str,
    subset_of_weights: str = "last_layer",
    hessian_structure: str = "kron",
    *args: Any,
    **options: Any,
) -> BaseLaplace:
    """laplace-torch's ``Laplace``: an approximation that is fitted in place, computed by lapwing.

    Args:
        model: The trained network.
        likelihood: ``"classification"``, ``"regression"`` or ``"reward_modeling"``.
        subset_of_weights: ``"last_layer"``, ``"all"`` or ``"subnetwork"``.
        hessian_structure: ``"kron"``, ``"diag"``, ``"full"`` or ``"lowrank"``.
        *args: As in ``BaseLaplace``, in its order.
        **options: As in ``BaseLaplace``; ``last_layer_name``, ``subnetwork_indices``.

    Raises:
        ConfigError: If there is no such likelihood or combination; it is a ``ValueError``, as there.

    Example:
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> x, y = torch.randn(40, 2), torch.randint(0, 3, (40,))
        >>> la = Laplace(nn.Linear(2, 3), "classification")
        >>> la.fit(DataLoader(TensorDataset(x, y), batch_size=10))
        >>> la.optimize_prior_precision(method="marglik")
        >>> la(x[:5], link_approx="probit").shape
        torch.Size([5, 3])
    """
    kinds = {(kind.subset, kind.held): kind for kind in KINDS}
    subset = str(getattr(subset_of_weights, "value", subset_of_weights))
    held = str(getattr(hessian_structure, "value", hessian_structure))
    if (subset, held) not in kinds:
        hint = 'subset_of_weights="last_layer", hessian_structure="kron"'
        if held == "gp":
            hint = "lw.Laplace(likelihood, structure=lw.Full(view='functions')), or lw.Nystrom() for its Nyström kind"
        known = ", ".join(f"{part} with {how}" for part, how in kinds)
        raise ConfigError(f"one of {known}", f"{subset} with {held}", hint)
    return kinds[subset, held](model, likelihood, *args, **options)


@final
class WholeMapping(nn.Module):
    """A network that takes a batch whole, as one mapping: as keyword arguments, which lapwing passes.

    Args:
        model: The network.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Any:
        """The outputs of a batch."""
        batch: MutableMapping[str, Tensor] = dict(inputs)
        return self.model(batch)


def __getattr__(name: str) -> Any:
    if name in ABSENT_NAMES:
        raise absent(f"laplace.{name}", ABSENT_NAMES[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def stand_in() -> None:
    """Puts this module in the place of ``laplace``, for libraries that are imported afterwards.

    Of ``laplace.utils``, ``laplace.curvature`` and ``laplace.marglik_training`` it has nothing: what is imported from
    them is refused with what lapwing has instead.

    Example:
        >>> from unittest.mock import patch
        >>> with patch.dict(sys.modules):  # undone afterwards
        ...     stand_in()
        ...     from laplace import Laplace as theirs
        >>> theirs is Laplace
        True
    """
    for name in ("laplace", "laplace.laplace", "laplace.baselaplace"):
        sys.modules[name] = sys.modules[__name__]
    for name in ABSENT_MODULES:
        sys.modules[name] = AbsentModule(name)


@final
class AbsentModule(ModuleType):
    """A module of laplace-torch that the facade has not."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise absent(f"{self.__name__}.{name}", ABSENT_MODULES[self.__name__])


def absent(name: str, hint: str) -> ImportError:
    """What is said of a name of laplace-torch that the facade has not."""
    return ImportError(f"Expected what laplace-torch's facade has. Got {name}. Try {hint}.")


def check_inside(grid: Sequence[float], losses: Sequence[float], best: int) -> None:
    """Warns where a search of a grid found nothing inside of it.

    Args:
        grid: Prior precisions, ascending.
        losses: Of each.
        best: Which was taken.

    Raises:
        NumericalError: If no loss is finite.

    Warns:
        DataWarning: If the best is an end of the grid, or all are as good.
    """
    if not math.isfinite(losses[best]):
        hint = "a larger log_prior_prec_min=, or held-out data without NaN"
        raise NumericalError("a held-out loss that is finite at some prior precision", f"{losses[best]}", hint)
    if len(grid) == 1:
        return
    if min(losses) == max(losses):
        warn(
            f"gridsearch: the held-out loss is {losses[best]:.4g} at every prior precision tried, and the first was "
            f"taken, {grid[best]:.3g}. Try a loss= that depends on it, such as that of loss=None",
            DataWarning,
        )
    elif best in (0, len(grid) - 1):
        end = "strongest" if best else "weakest"
        option = "larger log_prior_prec_max=" if best else "smaller log_prior_prec_min="
        warn(
            f"gridsearch: the {end} prior precision tried is the best, {grid[best]:.3g}, with a held-out loss of "
            f"{losses[best]:.4g}; a better one may lie beyond. Try a {option}, or method='marglik'",
            DataWarning,
        )


def check_asked(pred_type: str, link_approx: str) -> None:
    """Refuses a predictive that there is none of.

    Args:
        pred_type: The predictive.
        link_approx: The link.

    Raises:
        ConfigError: If there is no such one, or not together.
    """
    check_option("pred_type", pred_type, PREDICTIVES)
    check_option("link_approx", link_approx, LINKS)
    if pred_type == "nn" and link_approx != "mc":
        raise ConfigError('link_approx="mc" for pred_type="nn"', repr(link_approx), 'link_approx="mc"')


def square_form(precision: Structured, jacobians: Float[Tensor, "n c d"]) -> Float[Tensor, "n c c"]:
    """``J Λ⁻¹ Jᵀ`` of each example.

    Args:
        precision: Λ.
        jacobians: J.
    """
    rows = jacobians.flatten(0, 1).to(precision.dtype)
    solved = precision.solve(rows.mT).mT.reshape(jacobians.shape)
    return (rows.reshape(jacobians.shape) @ solved.mT).to(jacobians)


def check_indices(indices: object, weights: int) -> None:
    """Refuses what does not name some weights, each once.

    Args:
        indices: Positions in the flat vector.
        weights: How many there are.

    Raises:
        ConfigError: If it does not.
    """
    expected = f"subnetwork_indices, a vector of int64 from 0 to {weights - 1}, each once"
    hint = "torch.tensor([0, 5, 11])"
    if not isinstance(indices, Tensor) or indices.dtype != torch.int64 or indices.ndim != 1 or not indices.numel():
        got = f"{indices.dtype} {list(indices.shape)}" if isinstance(indices, Tensor) else f"{indices!r:.40}"
        raise ConfigError(expected, got, hint)
    if int(indices.min()) < 0 or int(indices.max()) >= weights:
        raise ConfigError(expected, f"{int(indices.min())} to {int(indices.max())}", hint)
    if len(indices.unique()) < len(indices):
        raise ConfigError(expected, "some of them twice", hint)
