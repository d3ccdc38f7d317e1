"""The structure for those who have no opinion."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import final

from lapwing.curvature.ggn import Hessian
from lapwing.posteriors import Posterior
from lapwing.priors import DiagonalPrior, GPrior
from lapwing.structures.full import AFFORDABLE, Full, seconds
from lapwing.structures.layered import KFAC, Diagonal
from lapwing.structures.task import Task

logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True)
class Auto:
    """Picks Full where one of its views takes at most 5 seconds by the cost rule, KFAC beyond; logs what it picked.

    The rule, ``structures.full.seconds``: ``2 m² r + 9 m³`` multiplications for a matrix of m rows beside r of the
    other kind, 2·10¹⁰ a second. The view over the d weights comes first, since it answers everything: up to about 2200.
    Where that takes longer, the view over the nc training outputs: few data, many weights. What takes 5 seconds takes
    at most about 120 MB.

    Beyond, single weights and a prior with one precision a weight take Diagonal: KFAC has neither.

    Example:
        >>> import torch
        >>> import lapwing as lw
        >>> for inputs, outputs in ((2, 3), (100, 50)):
        ...     model, x = torch.nn.Linear(inputs, outputs), torch.randn(60, inputs)
        ...     type(lw.Laplace(lw.Gaussian(), structure=Auto()).fit(model, (x, torch.randn(60, outputs)))).__name__
        'WeightPosterior'
        'WeightPosterior'
    """

    def fit(self, task: Task) -> Posterior:
        """The posterior of a task in the structure picked."""
        return self.pick(task).fit(task)

    def pick(self, task: Task) -> Full | KFAC | Diagonal:
        """The structure for a task; the data are counted until neither view is affordable."""
        network, prior, rows = task.model.network, task.prior, 0
        d, groups = network.size, prior.groups(network.uncertain)[1]
        over = dict.fromkeys(("weights", "functions"), 0.0)
        functions = not isinstance(prior, DiagonalPrior) and not isinstance(task.curvature, Hessian)
        for batch in task.model.data:
            rows += len(batch) * task.model.width
            over = {"weights": seconds(d, rows), "functions": seconds(rows, d, groups) if functions else math.inf}
            if min(over.values()) > AFFORDABLE:
                break
        by_weight = network.index is not None or isinstance(prior, DiagonalPrior | GPrior)
        picked = Diagonal() if by_weight else KFAC()
        if min(over.values()) <= AFFORDABLE:
            picked = Full(view="weights" if over["weights"] <= AFFORDABLE else "functions")
        words = (
            "Auto picked %s: in full %d weights would take %.2g s, %d training outputs or more %.2g s; it affords %g s"
        )
        logger.info(words, picked, d, over["weights"], rows, over["functions"], AFFORDABLE)
        return picked
