"""The whole covariance, as a matrix over weights or training outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, final, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.curvature.blocked import BlockedCurvature
from lapwing.curvature.dense import DenseSum
from lapwing.curvature.fold import Fold, Totals
from lapwing.curvature.kinds import Hessian
from lapwing.curvature.last_layer.features import FeatureRows, hides_inputs, joined_heads
from lapwing.curvature.sweep import chunk_size
from lapwing.curvature.tangent_kernel import TangentKernel
from lapwing.curvature.training_rows import InputRows, TrainingRows
from lapwing.ground.data.inputs import Inputs, concatenated
from lapwing.ground.distributed import check_alone
from lapwing.ground.errors import (
    NumericalError,
    TooLargeError,
    UnsupportedError,
    check_count,
    check_option,
    check_positive,
)
from lapwing.ground.precision import wide, wide_device
from lapwing.jacobian.layers.linear import OuterProducts
from lapwing.jacobian.products.hessian import hessian_product
from lapwing.linalg import Dense
from lapwing.posteriors import FunctionPosterior, Posterior, WeightPosterior
from lapwing.posteriors.rounding import check_rounding
from lapwing.priors import DiagonalPrior, Prior
from lapwing.structures.base import FitTask, Structure

View: TypeAlias = Literal["auto", "weights", "functions"]

FACTORS = 16
"""Bytes an entry of a matrix takes while it is factorised: a copy and its factor, both in float64."""


def flops(side: int, other: int, groups: int = 1) -> float:
    """What a view of the full covariance takes, in floating-point operations: ``2 g m² r + 9 m³``.

    The first term sums the matrix, the second is its eigendecomposition (Golub & Van Loan 2013, section 8.3). It is
    counted and not timed, so that a choice that rests on it is the same on every machine.

    Args:
        side: Rows m of its matrix: weights d, or training outputs nc.
        other: The other of the two, r.
        groups: Matrices g that are summed: in the function view one for each precision of the prior.

    Example:
        >>> f"{flops(3051, 927):.2g}, {flops(927, 3051):.2g}"  # over the weights, over the training outputs
        '2.7e+11, 1.2e+10'
    """
    return 2.0 * groups * side**2 * other + 9.0 * side**3


@final
@dataclass(frozen=True)
class Full(Structure):
    """The whole covariance, in whichever view is cheaper: d × d over the weights, or nc × nc over the training outputs.

    Λ = Jᵀ B J + A, or the same posterior through I + Sᵀ K S with K = J A⁻¹ Jᵀ and B = S Sᵀ (Rasmussen & Williams 2006,
    section 2.1.2).

    Args:
        view: ``"weights"``, ``"functions"``, or ``"auto"`` for the smaller matrix.
        max_bytes: Largest matrix it will make.
        max_flops: Most operations it may take, counted by ``structures.full.flops``.

    Raises:
        TooLargeError: If the matrix would be larger, or take more; nothing is computed.
        NumericalError: If of d × d nothing but rounding is left where the data leave weights to the prior.

    Cost:
        Weights: ``n c d²`` to sum, ``d³`` once. Functions: ``(n c)² d`` or less, ``(n c)³`` once. Of a last layer the
        posterior keeps the features of the training inputs; of other weights it keeps the training inputs, and every
        prediction sends them through the network again: a forward pass, and a backward pass for each output.

    Example:
        >>> import lapwing as lw
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(9, 2), torch.arange(9) % 3
        >>> type(lw.Laplace(lw.Categorical(), structure=Full(view="functions")).fit(model, (x, y))).__name__
        'FunctionPosterior'
    """

    view: View = "auto"
    max_bytes: int = field(default=2**32, repr=False)
    max_flops: float = field(default=math.inf, repr=False)

    def __post_init__(self) -> None:
        check_option("view", self.view, get_args(View))
        check_count("max_bytes", self.max_bytes)
        check_positive("max_flops", self.max_flops, "1e12")

    def check_prior(self, prior: Prior) -> None:
        """See ``Structure.check_prior``; in the view over the weights anything is added to."""
        if self.view == "functions":
            super().check_prior(prior)

    def fit(self, task: FitTask) -> Posterior:
        """The posterior of a task in this structure."""
        weights = task.model.network.size
        if task.prior.earlier is not None:
            return self._over_weights(task, outputs=0)
        if self.view == "weights" and self.max_flops == math.inf:
            return self._over_weights(task, outputs=0)  # the data need not be counted
        outputs = task.model.data.span[1] * task.model.width
        if self.view == "functions" or (self.view == "auto" and outputs < weights):
            return self._over_functions(task, outputs)
        return self._over_weights(task, outputs)

    def _over_weights(self, task: FitTask, outputs: int) -> Posterior:
        """Λ = G + A: the sum over the data, or the exact Hessian."""
        self._check_size(task.model.network.size, outputs, "d × d over the weights")
        if isinstance(task.curvature, Hessian):
            return self._exact_hessian(task, task.curvature.damping)
        posterior = task.summed(DenseSum(task.model.network, task.model.precision))
        check_rounding(posterior.curvature.operator, float(posterior.prior_diagonal.min()))
        return posterior

    def _exact_hessian(self, task: FitTask, damping: float) -> Posterior:
        """The posterior with the exact Hessian, refused where that and the prior are not positive definite."""
        hessian = hessian_product(task.model).dense(self.max_bytes)
        symmetric = (hessian + hessian.mT) / 2
        identity = torch.eye(len(hessian), dtype=hessian.dtype, device=hessian.device)
        posterior = task.posterior(
            WeightPosterior, task.totals(), task.with_earlier(BlockedCurvature(Dense(symmetric + damping * identity)))
        )
        try:
            posterior.precision.operator.logdet()
        except NumericalError as reason:
            hint = "training to convergence with this prior, a larger prior precision, GGN(), or Hessian(damping=...)"
            raise NumericalError("a Hessian that is positive definite with the prior", reason.got, hint) from reason
        return posterior

    def _over_functions(self, task: FitTask, outputs: int) -> Posterior:
        """I + Sᵀ K S: the rows Sᵀ J of the training data, and the kernel between them for each group of the prior."""
        network = task.model.network
        layout = network.uncertain
        if isinstance(task.prior, DiagonalPrior):
            raise UnsupportedError(
                "an Isotropic or Layerwise prior in function space", "one precision a weight", "Full(view='weights')"
            )
        check_alone(task.model.data.shared, "the view over the training outputs", "Full(view='weights'), or KFAC()")
        group, groups = task.prior.groups(layout)
        self._check_size(outputs, network.size, "nc × nc over the training outputs", groups)
        training, totals = training_rows(task)
        variances = unit_variances(group.to(network.like.device), groups, task.prior.relative(layout))
        grams = TangentKernel(task.model).training_grams(training, variances)
        return task.posterior(FunctionPosterior, totals, training, grams)

    def _check_size(self, side: int, other: int, what: str, groups: int = 1) -> None:
        """Refuse a matrix of too many bytes, or that takes too many operations."""
        hint = "structure KFAC() or Diagonal(), weights LastLayer() or Subnetwork(1000), or a larger Full("
        needed = side * side * (groups * 8 + FACTORS)
        if needed > self.max_bytes:
            raise TooLargeError(
                f"a covariance {what} of at most {self.max_bytes:,} bytes",
                f"{side:,} rows, which need {needed:,} bytes",
                f"{hint}max_bytes=)",
            )
        operations = flops(side, other, groups)
        if operations > self.max_flops:
            raise TooLargeError(
                f"a covariance {what} that takes at most {self.max_flops:,.0f} floating-point operations",
                f"{side:,} rows, which take {operations:,.0f}",
                f"{hint}max_flops=)",
            )


def training_rows(task: FitTask) -> tuple[TrainingRows, Totals]:
    """The rows ``Sᵀ J`` of the training data, and sums over them, in one pass.

    Of a last layer the features of its inputs are kept, where the network shows them; else the inputs themselves.
    """
    data = Fold(task.model, chunk_size(task.model, task.curvature))
    cotangents = list[Tensor]()
    heads = list[OuterProducts]()
    inputs = list[Inputs]()
    by_features = task.model.survey.head
    for forward, f, y in data:
        blocks = task.curvature.cotangents(task.model.likelihood, f, y, generator=task.generator)
        cotangents.append(torch.cat(list(blocks)))
        if by_features and not heads:
            by_features = hides_inputs(forward)
        if by_features:
            heads.append(forward.head.without_gradients())
        else:
            inputs.append(forward.inputs)
    columns = torch.cat(cotangents, dim=1)
    if by_features:
        return FeatureRows(columns, joined_heads(heads)), data.totals()
    return InputRows(columns, concatenated(inputs)), data.totals()


def unit_variances(
    group: Int[Tensor, " d"], groups: int, relative: Float[Tensor, " d"] | None
) -> list[Float[Tensor, " d"]]:
    """Prior variances of the weights of each group at a precision of 1, and 0 for those of others.

    Args:
        group: Group of each weight.
        groups: How many.
        relative: Precision of each weight relative to its group's; ``None`` where they are equal.
    """
    members = [group == g for g in range(groups)]
    if relative is None:
        return [wide(member) for member in members]
    return [wide(member) * wide(1 / relative).to(wide_device(group.device)) for member in members]
