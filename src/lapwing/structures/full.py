"""The whole covariance, as a matrix over weights or training outputs; and the choice of it where it is affordable."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, final, get_args

import torch
from torch import Tensor

from lapwing.curvature.fold import Fold, Totals
from lapwing.curvature.ggn import GGN, Hessian, MCFisher, chunk_size
from lapwing.curvature.gram import TangentKernel
from lapwing.curvature.sums import DenseSum, Held
from lapwing.curvature.training_rows import FeatureRows, InputRows, TrainingRows, hides_inputs
from lapwing.ground.data.inputs import Inputs, concatenated, count
from lapwing.ground.distributed import check_alone
from lapwing.ground.errors import (
    NumericalError,
    TooLargeError,
    UnsupportedError,
    check_count,
    check_option,
    check_positive,
)
from lapwing.jacobian.layers.factors import ConvOptions
from lapwing.jacobian.products.hessian import hessian_product
from lapwing.jacobian.products.strategy import multiplications
from lapwing.linalg import Dense
from lapwing.posteriors import FunctionPosterior, Posterior, WeightPosterior
from lapwing.posteriors.exact import check_rounding
from lapwing.priors import DiagonalPrior, GPrior
from lapwing.structures.summed import DRAWS, EXACT, KFAC, Diagonal, Fits, Task

logger = logging.getLogger(__name__)

View: TypeAlias = Literal["auto", "weights", "functions"]

FACTORS = 16
"""Bytes an entry of a matrix takes while it is factorised: a copy and its factor, both in float64."""

AFFORDABLE = 1e11
"""Operations the full covariance may take where nobody asked for it by name: about 2200 weights or training outputs."""

MANY = 1.2e12
"""Multiplications that backward passes for the outputs may take where nobody asked for them by name."""

FEW = 8
"""Outputs for which they are never too many: the sums over the data take as long."""

BACKWARD = 3
"""Forward passes that a backward pass takes, with the second moments of its gradients."""


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
class Full(Fits):
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
    max_bytes: int = 2**32
    max_flops: float = math.inf

    def __post_init__(self) -> None:
        check_option("view", self.view, get_args(View))
        check_count("max_bytes", self.max_bytes)
        check_positive("max_flops", self.max_flops, "1e12")

    def fit(self, task: Task) -> Posterior:
        """The posterior of a task in this structure."""
        d = task.model.network.size
        if self.view == "weights" and self.max_flops == math.inf:
            return self._weights(task, 0)
        rows = task.model.data.span[1] * task.model.width
        if self.view == "functions" or (self.view == "auto" and rows < d):
            return self._functions(task, rows)
        return self._weights(task, rows)

    def _weights(self, task: Task, rows: int) -> Posterior:
        self._check(task.model.network.size, rows, "d × d over the weights")
        if isinstance(task.curvature, Hessian):
            return self._exact(task, task.curvature.damping)
        posterior = task.summed(DenseSum(task.model.network))
        check_rounding(posterior)
        return posterior

    def _exact(self, task: Task, damping: float) -> Posterior:
        """The posterior with the exact Hessian, refused where that and the prior are not positive definite."""
        matrix = hessian_product(task.model).dense(self.max_bytes)
        damped = (matrix + matrix.mT) / 2 + damping * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        posterior = task.posterior(WeightPosterior, task.totals(), Held(Dense(damped)))
        try:
            posterior.precision.operator.logdet()
        except NumericalError as reason:
            hint = "training to convergence with this prior, a larger prior precision, GGN(), or Hessian(damping=...)"
            raise NumericalError("a Hessian that is positive definite with the prior", reason.got, hint) from reason
        return posterior

    def _functions(self, task: Task, rows: int) -> Posterior:
        if isinstance(task.prior, DiagonalPrior):
            raise UnsupportedError(
                "an Isotropic or Layerwise prior in function space", "one precision a weight", "Full(view='weights')"
            )
        check_alone(task.model.data.shared, "the view over the training outputs", "Full(view='weights'), or KFAC()")
        groups = task.prior.groups(task.model.network.uncertain)[1]
        self._check(rows, task.model.network.size, "nc × nc over the training outputs", groups)
        training, totals = self._record(task)
        layout, device = task.model.network.uncertain, task.model.network.like.device
        group, relative = task.prior.groups(layout)[0].to(device), task.prior.relative(layout)
        units = torch.ones((), dtype=torch.float64) if relative is None else 1 / relative
        variances = [(group == g) * units.to(device) for g in range(groups)]
        grams = TangentKernel(task.model).training_grams(training, variances)
        return task.posterior(FunctionPosterior, totals, training, grams)

    def _record(self, task: Task) -> tuple[TrainingRows, Totals]:
        """The rows of the training data, and sums over them."""
        data = Fold(task.model, chunk_size(task.model, task.curvature))
        by_features = task.model.survey.head
        options: ConvOptions | None = None
        inputs, features, cotangents = list[Inputs](), list[Tensor](), list[Tensor]()
        for forward, f, y in data:
            blocks = task.curvature.cotangents(task.model.likelihood, f, y, generator=task.generator)
            cotangents.append(torch.cat(list(blocks)))
            if by_features and not features:
                by_features = hides_inputs(forward)
            if by_features:
                features.append(forward.head.a)
                options = forward.head.options
            else:
                inputs.append(forward.inputs)
        columns = torch.cat(cotangents, dim=1)
        if by_features:
            return FeatureRows(columns, torch.cat(features), options), data.totals()
        return InputRows(columns, concatenated(inputs)), data.totals()

    def _check(self, side: int, other: int, what: str, groups: int = 1) -> None:
        hint = "structure KFAC() or Diagonal(), weights LastLayer() or Subnetwork(1000), or a larger Full("
        needed = side * side * (groups * 8 + FACTORS)
        operations = flops(side, other, groups)
        if needed > self.max_bytes:
            got = f"{side:,} rows, which need {needed:,} bytes"
            raise TooLargeError(f"a covariance {what} of at most {self.max_bytes:,} bytes", got, f"{hint}max_bytes=)")
        if operations > self.max_flops:
            got = f"{side:,} rows, which take {operations:,.0f}"
            expected = f"a covariance {what} that takes at most {self.max_flops:,.0f} floating-point operations"
            raise TooLargeError(expected, got, f"{hint}max_flops=)")


@final
@dataclass(frozen=True)
class Auto(Fits):
    """Picks Full where one of its views takes at most 10¹¹ operations, KFAC beyond; logs what it picked.

    The rule, ``structures.full.flops``: ``2 m² r + 9 m³`` for a matrix of m rows beside r of the other kind, seconds of
    a core. The view over the d weights comes first, since it answers everything: up to about 2200. Where that takes
    more, the view over the nc training outputs: few data, many weights. Either takes at most about 120 MB.

    Beyond, single weights and a prior with one precision a weight take Diagonal: KFAC has neither. Where backward
    passes for more than 8 outputs would take more than 1.2·10¹² multiplications, minutes of a core, labels are sampled
    in place of the exact GGN, see ``MCFisher``. All of this is counted and nothing timed: the same task is given the
    same structure everywhere.

    Args:
        max_flops: Operations that Full may take.
        max_passes: Multiplications that the backward passes of the exact GGN may take.

    Example:
        >>> import torch
        >>> import lapwing as lw
        >>> for inputs, outputs in ((2, 3), (100, 50)):
        ...     model, x = torch.nn.Linear(inputs, outputs), torch.randn(60, inputs)
        ...     type(lw.Laplace(lw.Gaussian(), structure=Auto()).fit(model, (x, torch.randn(60, outputs)))).__name__
        'WeightPosterior'
        'WeightPosterior'
    """

    max_flops: float = field(default=AFFORDABLE, repr=False)
    max_passes: float = field(default=MANY, repr=False)

    def fit(self, task: Task) -> Posterior:
        """The posterior of a task in the structure picked."""
        picked = self.pick(task)
        task = replace(task, structure=picked)
        as_it_is = isinstance(picked, Full) or task.model.data.shared
        return picked.fit(task if as_it_is else sampled(task, self.max_passes))

    def pick(self, task: Task) -> Full | KFAC | Diagonal:
        """The structure for a task; the data are counted until neither view is affordable."""
        network, prior, rows = task.model.network, task.prior, 0
        d, groups = network.size, prior.groups(network.uncertain)[1]
        over = dict.fromkeys(("weights", "functions"), 0.0)
        data = task.model.data
        functions = not data.shared and not isinstance(prior, DiagonalPrior) and not isinstance(task.curvature, Hessian)
        for examples in [data.span[1]] if data.shared else map(len, data):
            rows += examples * task.model.width
            over = {"weights": flops(d, rows), "functions": flops(rows, d, groups) if functions else math.inf}
            if min(over.values()) > self.max_flops:
                break
        by_weight = network.index is not None or isinstance(prior, DiagonalPrior | GPrior)
        picked = Diagonal() if by_weight else KFAC()
        if min(over.values()) <= self.max_flops:
            picked = Full(view="weights" if over["weights"] <= self.max_flops else "functions")
        words = (
            "Auto picked %s: in full %d weights would take %.2g operations, %d training outputs or more %.2g, and it "
            "affords %.2g"
        )
        logger.info(words, picked, d, over["weights"], rows, over["functions"], self.max_flops)
        return picked


def sampled(task: Task, most: float = MANY) -> Task:
    """The task, with labels sampled where the backward passes of the exact GGN would be too many; says how many.

    Args:
        task: What is to be fitted, layer by layer or weight by weight.
        most: Multiplications that the backward passes may take.

    Cost:
        A forward pass of one example where there are more than ``FEW`` outputs, to count what it takes.
    """
    model = task.model
    passes = model.width if model.width <= EXACT else DRAWS
    if model.survey.head or not isinstance(task.curvature, GGN) or passes <= FEW:
        return task
    first = model.data.first()
    operations = BACKWARD * passes * model.data.about(count(first)) * multiplications(model.network, first)
    if operations <= most:
        return task
    words = (
        "the exact GGN would take %.2g multiplications, for %d backward passes an example: labels are sampled, which "
        "takes one. structure=KFAC() is exact, curvature=MCFisher(16) closer to it"
    )
    logger.warning(words, operations, passes)
    generator = task.generator or torch.Generator().manual_seed(0)
    return replace(task, curvature=MCFisher(), generator=generator)
