"""How the posterior is held, and what it takes to compute it in that form."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal, TypeAlias, final, get_args

import torch
from torch import Tensor

from lapwing.curvature.dense import DenseSum
from lapwing.curvature.diagonal import DiagonalSum
from lapwing.curvature.ggn import Curvature, Hessian
from lapwing.curvature.gram import TangentKernel
from lapwing.curvature.hessian import HessianProduct
from lapwing.curvature.kfac import Bias, KroneckerSum, Sharing
from lapwing.curvature.layers import Survey
from lapwing.curvature.network import Network
from lapwing.curvature.sums import Accumulator, Held, Tally, Totals, chunk_size, sweep, visit
from lapwing.data import Data, concatenated
from lapwing.errors import TooLargeError, UnsupportedError, check_option
from lapwing.likelihoods import Likelihood
from lapwing.linalg import Dense
from lapwing.posteriors import FunctionPosterior, Posterior, WeightPosterior
from lapwing.priors import DiagonalPrior, Prior
from lapwing.types import Inputs

logger = logging.getLogger(__name__)

View: TypeAlias = Literal["auto", "weights", "functions"]

FACTORS = 16
"""Bytes an entry of a matrix takes while it is factorised: a copy and its factor, both in float64."""

AUTO_FULL = 2000
"""Most weights for which ``Auto`` picks the full matrix: its eigendecomposition takes seconds."""


@final
@dataclass(frozen=True, eq=False)
class Task:
    """Everything a structure needs to compute a posterior."""

    network: Network
    survey: Survey
    data: Data
    likelihood: Likelihood
    prior: Prior
    curvature: Curvature
    generator: torch.Generator | None

    def summed(self, total: Accumulator) -> WeightPosterior:
        """A posterior over the weights from one sweep over the data."""
        setting = (self.network, self.survey, self.data, self.likelihood, self.curvature)
        totals = sweep(*setting, total, generator=self.generator)
        return self.posterior(totals, total.result())

    def posterior(self, totals: Totals, held: Held) -> WeightPosterior:
        """The posterior over the weights with this curvature."""
        setting = (self.network, self.survey, self.likelihood, self.prior)
        return WeightPosterior(*setting, totals, self.likelihood, (), held)


@final
@dataclass(frozen=True)
class Full:
    """The whole covariance, in whichever view is cheaper: d × d over the weights, or nc × nc over the training outputs.

    Λ = Jᵀ B J + A, or the same posterior through I + Sᵀ K S with K = J A⁻¹ Jᵀ and B = S Sᵀ (Rasmussen & Williams 2006,
    section 2.1.2).

    Args:
        view: ``"weights"``, ``"functions"``, or ``"auto"`` for the smaller matrix.
        max_bytes: Largest matrix it will make.

    Raises:
        TooLargeError: If the matrix would be larger; nothing is computed.

    Cost:
        Weights: ``n c d²`` to sum, ``d³`` once. Functions: ``(n c)² d`` or less, ``(n c)³`` once, and a pass over the
        training data for every prediction.

    Example:
        >>> import lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> type(lw.Laplace(lw.Categorical(), structure=Full(view="functions")).fit(model, (x, y))).__name__
        'FunctionPosterior'
    """

    view: View = "auto"
    max_bytes: int = 2**32

    def __post_init__(self) -> None:
        check_option("view", self.view, get_args(View))

    def fit(self, task: Task) -> Posterior:
        """The posterior of a task in this structure."""
        d = task.network.size
        if self.view == "weights":
            return self._weights(task, d)
        rows = sum(len(batch) for batch in task.data) * task.survey.output.numel()
        if self.view == "functions" or rows < d:
            return self._functions(task, rows)
        return self._weights(task, d)

    def _weights(self, task: Task, d: int) -> Posterior:
        self._check(d, task, "d × d over the weights")
        return self._exact(task) if isinstance(task.curvature, Hessian) else task.summed(DenseSum(task.network))

    def _exact(self, task: Task) -> Posterior:
        """The posterior with the exact Hessian, refused where that and the prior are not positive definite."""
        tally = Tally(task.likelihood)
        size = chunk_size(task.network, task.survey, task.likelihood, task.curvature)
        for forward, f, y in visit(task.network, task.survey, task.data, task.likelihood, size):
            tally.add(forward, f, y)
        matrix = HessianProduct(task.network, task.likelihood, task.data).dense(self.max_bytes)
        posterior = task.posterior(tally.totals(), Held(Dense((matrix + matrix.mT) / 2)))
        posterior.precision.operator.logdet()
        return posterior

    def _functions(self, task: Task, rows: int) -> Posterior:
        if isinstance(task.prior, DiagonalPrior):
            raise UnsupportedError(
                "an Isotropic or Layerwise prior in function space", "one precision a weight", "Full(view='weights')"
            )
        groups = task.prior.groups(task.network.uncertain)[1]
        self._check(rows, task, "nc × nc over the training outputs", groups)
        inputs, cotangents, totals = self._record(task)
        kernel = TangentKernel(task.network, task.survey, task.likelihood)
        group = task.prior.groups(task.network.uncertain)[0].to(task.network.like.device)
        variances = [(group == g).double() for g in range(groups)]
        grams = torch.stack([kernel.training_gram(inputs, cotangents, variance) for variance in variances])
        return FunctionPosterior(
            task.network,
            task.survey,
            task.likelihood,
            task.prior,
            totals,
            task.likelihood,
            (),
            inputs,
            cotangents,
            grams,
        )

    def _record(self, task: Task) -> tuple[Inputs, Tensor, Totals]:
        """Training inputs, the cotangents that make them rows, and sums over the data."""
        tally = Tally(task.likelihood)
        size = chunk_size(task.network, task.survey, task.likelihood, task.curvature)
        inputs, cotangents = [], []
        for forward, f, y in visit(task.network, task.survey, task.data, task.likelihood, size):
            blocks = task.curvature.cotangents(task.likelihood, f, y, generator=task.generator)
            inputs.append(forward.inputs)
            cotangents.append(torch.cat(list(blocks)))
            tally.add(forward, f, y)
        return concatenated(inputs), torch.cat(cotangents, dim=1), tally.totals()

    def _check(self, size: int, task: Task, what: str, copies: int = 1) -> None:
        needed = size * size * (copies * 8 + FACTORS)
        if needed > self.max_bytes:
            raise TooLargeError(
                f"a covariance {what} of at most {self.max_bytes:,} bytes",
                f"{size:,} rows, which need {needed:,} bytes",
                "structure KFAC() or Diagonal(), weights LastLayer() or Subnetwork(1000), or a larger Full(max_bytes=)",
            )


@final
@dataclass(frozen=True)
class Diagonal:
    """Independent weights: the diagonal of the curvature, Σ_nk (J_nᵀ u_nk)² for the columns u of the roots of B.

    Cost:
        Memory d. A pass over the data with c cotangents.

    Example:
        >>> import lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> lw.Laplace(lw.Categorical(), structure=Diagonal()).fit(model, (x, y)).precision.operator
        Diagonal(9 x 9, torch.float32, cpu)
    """

    def fit(self, task: Task) -> Posterior:
        """The posterior of a task in this structure."""
        return task.summed(DiagonalSum(task.network))


@final
@dataclass(frozen=True)
class KFAC:
    """Independent layers, each a Kronecker product of input and gradient second moments; norms exact.

    G_l ≈ Σ g gᵀ ⊗ E[a aᵀ] for inputs a and gradients g of layer l (Martens & Grosse 2015, section 3).

    Args:
        sharing: ``"expand"`` takes each position that shares a weight for an example of its own, ``"reduce"`` adds them
            up first (Eschenhagen et al. 2023).
        bias: ``"joint"`` treats a bias as a last input of its weight, ``"separate"`` gives it a block of its own.

    Raises:
        ConfigError: If an option is none of these.

    Cost:
        Memory o² + i² a layer. A pass over the data with c cotangents, and an eigendecomposition of each factor.

    Example:
        >>> import lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> lw.Laplace(lw.Categorical(), structure=KFAC()).fit(model, (x, y)).predict(x[:2]).probs.shape
        torch.Size([2, 3])
    """

    sharing: Sharing = "expand"
    bias: Bias = "joint"

    def __post_init__(self) -> None:
        check_option("sharing", self.sharing, get_args(Sharing))
        check_option("bias", self.bias, get_args(Bias))

    def fit(self, task: Task) -> Posterior:
        """The posterior of a task in this structure."""
        return task.summed(KroneckerSum(task.network, self.sharing, self.bias))


@final
@dataclass(frozen=True)
class Auto:
    """Picks Full up to 2000 uncertain weights, KFAC beyond, Diagonal for single weights beyond; logs what it picked.

    Example:
        >>> Auto().pick(Network.of(torch.nn.Linear(2, 3))), Auto().pick(Network.of(torch.nn.Linear(100, 50)))
        (Full(view='weights', max_bytes=4294967296), KFAC(sharing='expand', bias='joint'))
    """

    def fit(self, task: Task) -> Posterior:
        """The posterior of a task in the structure picked."""
        picked = self.pick(task.network)
        logger.info("Auto picked %s for %d uncertain weights", picked, task.network.size)
        return picked.fit(task)

    def pick(self, network: Network) -> Full | KFAC | Diagonal:
        """The structure for a network."""
        if network.size <= AUTO_FULL:
            return Full(view="weights")
        return KFAC() if network.index is None else Diagonal()


Structure: TypeAlias = Auto | Full | Diagonal | KFAC
"""How the posterior is held."""
