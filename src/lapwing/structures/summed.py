"""What a structure is given, and the covariances that are one sum over the data: weight by weight, layer by layer."""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, final, get_args

import torch

from lapwing import linalg
from lapwing.curvature.fold import Fold, Totals
from lapwing.curvature.ggn import GGN, Accumulator, Curvature, EmpiricalFisher, Noise, chunk_size, sweep
from lapwing.curvature.kfac import Bias, KroneckerSum, Sharing
from lapwing.curvature.sums import DiagonalSum
from lapwing.ground.errors import UnsupportedError, check_count, check_option
from lapwing.jacobian.layers.capture import NORMS
from lapwing.jacobian.model import Model
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.linear.preconditioners.base import CurvatureRecipe
from lapwing.linear.problem import Problem
from lapwing.posteriors import Posterior, WeightPosterior
from lapwing.priors import GPrior, Prior

logger = logging.getLogger(__name__)

P = TypeVar("P", bound=Posterior)

EXACT = 1024
"""Most outputs of an example, over its positions, for which each has a backward pass of its own; more have draws."""

DRAWS = 64
"""Of those an example, each of all its outputs together."""


class Fits(abc.ABC):
    """A structure; ``structures.Structure`` lists them."""

    @abc.abstractmethod
    def fit(self, task: Task) -> Posterior:
        """The posterior of a task in this structure."""


@final
@dataclass(frozen=True)
class Refit:
    """How a posterior was fitted; see ``posteriors.base.Fit``.

    Args:
        structure: The structure, the one that was picked in place of ``Auto``.
        curvature: Which matrix.
    """

    structure: Fits
    curvature: Curvature

    def again(self, model: Model, prior: Prior) -> Posterior:
        """The posterior of a model under a prior; draws of a curvature are the same at every call."""
        generator = torch.Generator(model.network.like.device).manual_seed(model.data.span[0])
        return self.structure.fit(Task(model, prior, self.curvature, generator, self.structure))


@final
@dataclass(frozen=True, eq=False)
class Task:
    """Everything a structure needs to compute a posterior.

    Args:
        model: The network, its likelihood, and the data.
        prior: p(θ).
        curvature: Which matrix.
        generator: Source of randomness of the curvature.
        structure: The structure that computes it, where the posterior is to know how it was fitted.
    """

    model: Model
    prior: Prior
    curvature: Curvature
    generator: torch.Generator | None
    structure: Fits | None = None

    def summed(self, total: Accumulator) -> WeightPosterior:
        """A posterior over the weights from one sweep over the data."""
        totals = sweep(self.model, self.curvature, total, generator=self.generator)
        posterior = self.posterior(WeightPosterior, totals, total.result())
        many = self.model.many and self.model.likelihood.labels
        return posterior.with_link("probit") if many and posterior.wide else posterior

    def affordable(self) -> Task:
        """The task, its curvature by ``DRAWS`` draws of N(0, B) where an example has more than ``EXACT`` outputs."""
        model = self.model
        if not isinstance(self.curvature, GGN) or model.survey.head or model.width <= EXACT:
            return self
        words = (
            "%d outputs an example: the curvature from %d draws of N(0, B), in place of a backward pass for each; "
            "relative standard error of its diagonal %.2g / √(examples)"
        )
        logger.info(words, model.width, DRAWS, (2 / DRAWS) ** 0.5)
        generator = self.generator or torch.Generator(model.network.like.device).manual_seed(model.data.span[0])
        return replace(self, curvature=Noise(DRAWS), generator=generator)

    def totals(self) -> Totals:
        """Sums over the data at the trained weights, from one pass of forward passes."""
        return Fold(self.model, chunk_size(self.model, self.curvature), graph=False).totals()

    def posterior(self, kind: Callable[..., P], totals: Totals, *own: Any, partial: bool = False) -> P:
        """A posterior of this kind, with what it alone holds."""
        fixed = isinstance(self.curvature, EmpiricalFisher)
        fitted_by = None if self.structure is None else Refit(self.structure, self.curvature)
        given = {"likelihood": self.model.likelihood, "noise_fixed": fixed, "partial": partial, "fitted_by": fitted_by}
        return kind(self.model, self.prior, totals, *own, **given)


def check_products(task: Task) -> None:
    """Refuse a curvature whose products are not those of the generalised Gauss-Newton matrix.

    Raises:
        UnsupportedError: If it is another.
    """
    if not isinstance(task.curvature, GGN):
        raise UnsupportedError(
            "the generalised Gauss-Newton matrix for products", f"{task.curvature}", "curvature=GGN()"
        )


def scaled(task: Task) -> Task:
    """The task with a prior that knows its scale: diag(M), exact from layer factors or from noise.

    A prior that knows it already, or has none, stays as it is.

    Cost:
        A sweep over the data, with a backward pass for each output, or each sample of the prior.
    """
    prior = task.prior
    if not isinstance(prior, GPrior) or prior.scale is not None:
        return task
    total = DiagonalSum(task.model.network)
    curvature = GGN() if prior.samples is None else Noise(prior.samples)
    sweep(task.model, curvature, total, generator=task.generator)
    return replace(task, prior=prior.scaled_by(total.result().operator.diagonal(), task.model.network.uncertain))


@final
@dataclass(frozen=True)
class Diagonal(CurvatureRecipe, Fits):
    """Independent weights: the diagonal of the curvature, Σ_nk (J_nᵀ u_nk)² for the columns u of the roots of B.

    Cost:
        Memory d. A pass over the data with c cotangents; with 64 draws of N(0, B) where an example has over 1024
        outputs, its positions included, which is logged; with none for a last layer.

    Example:
        >>> import torch, lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> lw.Laplace(lw.Categorical(), structure=Diagonal()).fit(model, (x, y)).precision.operator
        Diagonal(9 x 9, torch.float32, cpu)
    """

    def fit(self, task: Task) -> Posterior:
        """The posterior of a task in this structure."""
        return task.affordable().summed(DiagonalSum(task.model.network))

    def curvature(self, problem: Problem) -> linalg.Structured:
        """The curvature in this structure, for a preconditioner."""
        return linalg.Diagonal(problem.curvature.diagonal())


@final
@dataclass(frozen=True)
class KFAC(CurvatureRecipe, Fits):
    """Independent layers, each a Kronecker product of input and gradient second moments; norms exact.

    G_l ≈ Σ g gᵀ ⊗ E[a aᵀ] for inputs a and gradients g of layer l (Martens & Grosse 2015, section 3).

    Args:
        sharing: ``"expand"`` takes each position that shares a weight for an example of its own, ``"reduce"`` adds them
            up first (Eschenhagen et al. 2023).
        bias: ``"joint"`` treats a bias as a last input of its weight, ``"separate"`` gives it a block of its own.
        rank: Eigenpairs kept of a factor with three times as many rows or more; the rest of its trace is spread evenly
            over all other directions; ``WeightPosterior.precision_error`` bounds what that changes. ``None`` is exact.

    Raises:
        ConfigError: If an option is none of these.
        UnsupportedError: If a prior has more than one precision for the weights of a layer.

    Cost:
        A pass over the data with as many cotangents as for ``Diagonal``. Of each factor of m rows the
        eigendecomposition, ``9 m³`` multiplications; ``3 m n² + 9 n³`` where n ≤ m / 2 examples and positions fill it;
        or ``3 m² rank``. Memory o² + i² a layer, or its rank times o + i.

    Example:
        >>> import torch, lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> lw.Laplace(lw.Categorical(), structure=KFAC()).fit(model, (x, y)).predict(x[:2]).probs.shape
        torch.Size([2, 3])
    """

    sharing: Sharing = "expand"
    bias: Bias = "joint"
    rank: int | None = 1024

    def __post_init__(self) -> None:
        check_option("sharing", self.sharing, get_args(Sharing))
        check_option("bias", self.bias, get_args(Bias))
        if self.rank is not None:
            check_count("rank", self.rank, usual=1024)

    def fit(self, task: Task) -> Posterior:
        """The posterior of a task in this structure."""
        network, curved = task.model.network, [layer for layer in task.model.survey.layers if layer.kind not in NORMS]
        joint = [layer.names for layer in curved]
        _check_one_precision(task, joint if self.bias == "joint" else [(name,) for names in joint for name in names])
        total = KroneckerSum(network, self.sharing, self.bias, self.rank)
        posterior = task.affordable().summed(total)
        if total.cut:
            logger.warning("%s keeps the leading eigenpairs of its largest factors: %r", self, posterior)
        return posterior

    def curvature(self, problem: Problem) -> linalg.Structured:
        """The curvature in this structure, for a preconditioner."""
        if not isinstance(problem.model, Linearisation):
            raise UnsupportedError(f"a problem with a network for {self}", "one without", "PivotedCholesky(100)")
        total = KroneckerSum(problem.model.model.network, self.sharing, self.bias, self.rank)
        sweep(problem.model.model, GGN(), total)
        return total.result().operator


def _check_one_precision(task: Task, blocks: list[tuple[str, ...]]) -> None:
    """Refuse a prior under which the weights of a Kronecker block differ."""
    layout = task.model.network.uncertain
    (group, groups), relative = task.prior.groups(layout), task.prior.relative(layout)
    if groups == 1 and relative is None:
        return
    for names in blocks:
        parts = [group[layout.slices[name]] for name in names]
        if relative is not None or min(int(part.min()) for part in parts) < max(int(part.max()) for part in parts):
            raise UnsupportedError(
                f"one prior precision for all of {', '.join(names)}, for Kronecker factors",
                f"a {type(task.prior).__name__} with several",
                "an Isotropic or Layerwise prior, or structure=Sampled(64), MatrixFree(), LowRank(200) or Diagonal()",
            )
