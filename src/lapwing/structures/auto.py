"""The structure that is picked where nobody picks one."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field, replace
from typing import final

import torch

from lapwing import linalg
from lapwing.curvature.kinds import GGN, Hessian, MCFisher
from lapwing.linalg import Structured
from lapwing.posteriors import Posterior
from lapwing.priors import DiagonalPrior, GPrior, Prior
from lapwing.structures.base import DRAWS, EXACT, MANY, FitTask, Structure, multiplied
from lapwing.structures.diagonal import Diagonal
from lapwing.structures.full import Full, flops
from lapwing.structures.kfac import KFAC

logger = logging.getLogger(__name__)

AFFORDABLE = 1e11
"""Operations the full covariance may take where nobody asked for it by name: about 2200 weights or training outputs."""

FEW = 8
"""Outputs for which they are never too many: the sums over the data take as long."""


@final
@dataclass(frozen=True)
class Auto(Structure):
    """Picks Full where one of its views takes at most 10¹¹ operations, KFAC beyond; logs what it picked.

    The rule, ``structures.full.flops``: ``2 m² r + 9 m³`` for a matrix of m rows beside r of the other kind, seconds of
    a core. The view over the d weights comes first, since it answers everything: up to about 2200. Where that takes
    more, the view over the nc training outputs: few data, many weights. Either takes at most about 120 MB.

    Beyond, single weights and a prior with one precision a weight take Diagonal: KFAC has neither. Where backward
    passes for more than 8 outputs would take more than 1.2·10¹² multiplications, minutes of a core, labels are sampled
    in place of the exact GGN, see ``MCFisher``; not in place of ``GGN(exact=True)``. All of this is counted and nothing
    timed: the same task is given the same structure everywhere.

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

    def check_prior(self, prior: Prior) -> None:
        """See ``Structure.check_prior``; with earlier data, their structure is the one that is picked."""

    def fit(self, task: FitTask) -> Posterior:
        """The posterior of a task in the structure picked."""
        picked = self.pick(task)
        task = replace(task, structure=picked)
        in_full = isinstance(picked, Full)
        if in_full or task.model.data.shared:
            return picked.fit(task)
        return picked.fit(with_sampled_labels(task, self.max_passes))

    def pick(self, task: FitTask) -> Full | KFAC | Diagonal:
        """The structure for a task; the data are counted until neither view is affordable."""
        network = task.model.network
        weights = network.size
        if task.prior.earlier is not None:
            return like_earlier(task.prior.earlier)
        outputs, over_weights, over_functions = counted(task, self.max_flops)
        if over_weights <= self.max_flops:
            picked = Full(view="weights")
        elif over_functions <= self.max_flops:
            picked = Full(view="functions")
        elif network.index is not None or isinstance(task.prior, DiagonalPrior | GPrior):
            picked = Diagonal()
        else:
            picked = KFAC()
        words = (
            "Auto picked %s: in full %d weights would take %.2g operations, %d training outputs or more %.2g, and it "
            "affords %.2g"
        )
        logger.info(words, picked, weights, over_weights, outputs, over_functions, self.max_flops)
        return picked


def like_earlier(earlier: Structured) -> Full | KFAC | Diagonal:
    """The structure of the curvature that earlier data had."""
    if isinstance(earlier, linalg.Diagonal):
        return Diagonal()
    if isinstance(earlier, linalg.BlockDiagonal):
        return KFAC()
    return Full(view="weights")


def counted(task: FitTask, affordable: float) -> tuple[int, float, float]:
    """Training outputs, and what the full covariance takes over the weights and over them, in operations.

    The data are counted until neither is affordable; outputs are then at least as many. Over the outputs it takes
    infinitely many where that view does not know the prior or the curvature, or processes share the data.

    Args:
        task: What is to be fitted.
        affordable: Operations that it may take.
    """
    data = task.model.data
    weights = task.model.network.size
    groups = task.prior.groups(task.model.network.uncertain)[1]
    known_over_functions = not isinstance(task.prior, DiagonalPrior) and not isinstance(task.curvature, Hessian)
    outputs = 0
    over_weights = 0.0
    over_functions = 0.0
    for examples in [data.span[1]] if data.shared else map(len, data):
        outputs += examples * task.model.width
        over_weights = flops(weights, outputs)
        over_functions = math.inf
        if known_over_functions and not data.shared:
            over_functions = flops(outputs, weights, groups)
        if min(over_weights, over_functions) > affordable:
            break
    return outputs, over_weights, over_functions


def with_sampled_labels(task: FitTask, most: float = MANY) -> FitTask:
    """The task, with labels sampled where the backward passes of the exact GGN would be too many; says how many.

    Args:
        task: What is to be fitted, layer by layer or weight by weight.
        most: Multiplications that the backward passes may take.

    Cost:
        A forward pass of one example where there are more than ``FEW`` outputs, to count what it takes.
    """
    model = task.model
    passes = model.width if model.width <= EXACT else DRAWS
    exact = not isinstance(task.curvature, GGN) or task.curvature.exact
    if exact or model.survey.head or passes <= FEW:
        return task
    operations = multiplied(model, passes)
    if operations <= most:
        return task
    words = (
        "the exact GGN would take %.2g multiplications, for %d backward passes an example: labels are sampled, which "
        "takes one. curvature=GGN(exact=True) has them all, MCFisher(16) is closer to it"
    )
    logger.warning(words, operations, passes)
    generator = task.generator or torch.Generator().manual_seed(0)
    return replace(task, curvature=MCFisher(), generator=generator)
