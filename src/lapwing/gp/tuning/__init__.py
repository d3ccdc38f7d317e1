"""Choosing the kernel and the noise of a Gaussian process by its evidence: of all data, of a part, or by draws."""

from __future__ import annotations

from lapwing.gp.tuning.evidence import Evidence
from lapwing.gp.tuning.pathwise import Pathwise
from lapwing.gp.tuning.subsets import Centroids, Subset
from lapwing.gp.tuning.tunable import GPStep, Tunable

__all__ = ["Centroids", "Evidence", "GPStep", "Pathwise", "Subset", "Tunable"]
