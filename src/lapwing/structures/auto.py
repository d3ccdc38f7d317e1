"""The structure for those who have no opinion."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import final

from lapwing.curvature.network import Network
from lapwing.posteriors import Posterior
from lapwing.structures.full import Full
from lapwing.structures.layered import KFAC, Diagonal
from lapwing.structures.task import Task

logger = logging.getLogger(__name__)

AUTO_FULL = 2000
"""Most weights for which ``Auto`` picks the full matrix: its eigendecomposition takes seconds."""


@final
@dataclass(frozen=True)
class Auto:
    """Picks Full up to 2000 uncertain weights, KFAC beyond, Diagonal for single weights beyond; logs what it picked.

    Example:
        >>> import torch
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
