"""The structure for those who have no opinion."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import final

from lapwing.curvature.network import Network
from lapwing.posteriors import Posterior
from lapwing.priors import DiagonalPrior, GPrior, Prior
from lapwing.structures.full import Full
from lapwing.structures.layered import KFAC, Diagonal
from lapwing.structures.task import Task

logger = logging.getLogger(__name__)

AUTO_FULL = 2000
"""Most weights for which ``Auto`` picks the full matrix: its eigendecomposition takes seconds."""


@final
@dataclass(frozen=True)
class Auto:
    """Picks Full up to 2000 uncertain weights, KFAC beyond; logs what it picked.

    Beyond, single weights and a prior with one precision a weight take Diagonal: KFAC has neither.

    Example:
        >>> import torch
        >>> Auto().pick(Network.of(torch.nn.Linear(2, 3))), Auto().pick(Network.of(torch.nn.Linear(100, 50)))
        (Full(view='weights', max_bytes=4294967296), KFAC(sharing='expand', bias='joint'))
    """

    def fit(self, task: Task) -> Posterior:
        """The posterior of a task in the structure picked."""
        picked = self.pick(task.network, task.prior)
        logger.info("Auto picked %s for %d uncertain weights", picked, task.network.size)
        return picked.fit(task)

    def pick(self, network: Network, prior: Prior | None = None) -> Full | KFAC | Diagonal:
        """The structure for a network and its prior."""
        if network.size <= AUTO_FULL:
            return Full(view="weights")
        by_weight = network.index is not None or isinstance(prior, DiagonalPrior | GPrior)
        return Diagonal() if by_weight else KFAC()
