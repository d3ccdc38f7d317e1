"""Independent layers, each a Kronecker product of two second moments."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import final, get_args

import torch

from lapwing import linalg
from lapwing.curvature.kfac import Bias, Damping, KroneckerSum
from lapwing.curvature.kinds import GGN
from lapwing.curvature.sweep import sweep
from lapwing.ground.errors import UnsupportedError, check_count, check_option
from lapwing.jacobian.layers.capture import kind_of
from lapwing.jacobian.layers.moments import Sharing
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.linear.preconditioners.base import CurvatureRecipe
from lapwing.linear.problem import Problem
from lapwing.posteriors import Posterior
from lapwing.structures.base import FitTask, Structure

logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True)
class KFAC(CurvatureRecipe, Structure):
    """Independent layers, each a Kronecker product of input and gradient second moments; norms exact.

    G_l ≈ Σ g gᵀ ⊗ E[a aᵀ] for inputs a and gradients g of layer l (Martens & Grosse 2015, section 3). A parameter for
    which no Kronecker product stands has its exact block, of more than 1024 weights the diagonal of it: so has an
    embedding that is the head too.

    Args:
        sharing: ``"expand"`` takes each position that shares a weight for an example of its own, ``"reduce"`` adds them
            up first (Eschenhagen et al. 2023).
        bias: ``"joint"`` treats a bias as a last input of its weight, ``"separate"`` gives it a block of its own.
        rank: Eigenpairs kept of a factor with three times as many rows or more; the rest of its trace is spread evenly
            over all other directions; ``WeightPosterior.precision_error`` bounds what that changes. ``None`` is exact.
        damping: ``"exact"`` adds the prior precision α to each product; ``"factored"``, for comparison, shares it out
            among the factors, ``(G + π √α) ⊗ (A + √α / π)``, which is larger (Martens & Grosse 2015, section 6.3).

    Raises:
        ConfigError: If an option is none of these.
        UnsupportedError: If a prior has more than one precision for the weights of a layer.

    Cost:
        A pass over the data with as many cotangents as for ``Diagonal``; draws of N(0, B) in place of many,
        see ``GGN``. Of each factor of m rows the
        eigendecomposition, ``9 m³`` multiplications; ``3 m n² + 9 n³`` where n ≤ m / 2 examples and positions fill it;
        or ``3 m² rank``. Memory o² + i² a layer, or its rank times o + i.

    Example:
        >>> import torch, lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> lw.Laplace(lw.Categorical(), structure=KFAC()).fit(model, (x, y)).predict(x[:2]).probs.shape
        torch.Size([2, 3])
    """

    adds_to = (linalg.BlockDiagonal,)

    sharing: Sharing = "expand"
    bias: Bias = "joint"
    rank: int | None = 1024
    damping: Damping = "exact"

    def __post_init__(self) -> None:
        check_option("sharing", self.sharing, get_args(Sharing))
        check_option("bias", self.bias, get_args(Bias))
        check_option("damping", self.damping, get_args(Damping))
        if self.rank is not None:
            check_count("rank", self.rank, usual=1024)

    def fit(self, task: FitTask) -> Posterior:
        """The posterior of a task in this structure."""
        check_one_precision(task, self.bias)
        network = task.model.network
        precision = task.model.precision
        total = KroneckerSum(network, self.sharing, self.bias, self.rank, precision, damping=self.damping)
        posterior = task.affordable(inverted=True).summed(total)
        if total.cut:
            logger.warning("%s keeps the leading eigenpairs of its largest factors: %r", self, posterior)
        return posterior

    def curvature(self, problem: Problem) -> linalg.Structured:
        """The curvature in this structure, for a preconditioner."""
        if not isinstance(problem.model, Linearisation):
            raise UnsupportedError(f"a problem with a network for {self}", "one without", "PivotedCholesky(100)")
        model = problem.model.model
        total = KroneckerSum(model.network, self.sharing, self.bias, self.rank, model.precision)
        sweep(model, GGN(), total)
        return total.result().operator


def check_one_precision(task: FitTask, bias: Bias) -> None:
    """Refuse a prior under which the weights of a Kronecker block differ.

    Args:
        task: What is to be fitted.
        bias: Whether a bias has a block of its own.

    Raises:
        UnsupportedError: If they do.
    """
    layers = [layer.names for layer in task.model.survey.layers if kind_of(layer).kronecker]
    each_alone = [(name,) for names in layers for name in names]
    blocks = layers if bias == "joint" else each_alone
    layout = task.model.network.uncertain
    group, groups = task.prior.groups(layout)
    by_weight = task.prior.relative(layout) is not None
    if groups == 1 and not by_weight:
        return
    for names in blocks:
        in_block = torch.cat([group[layout.slices[name]] for name in names])
        if by_weight or int(in_block.min()) < int(in_block.max()):
            raise UnsupportedError(
                f"one prior precision for all of {', '.join(names)}, for Kronecker factors",
                f"a {type(task.prior).__name__} with several",
                "an Isotropic or Layerwise prior, or structure=Sampled(64), MatrixFree(), LowRank(200) or Diagonal()",
            )
