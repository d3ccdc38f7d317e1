"""Whether draws have the distribution they should have, told from products with its precision alone."""

from __future__ import annotations

from lapwing.evaluation.diagnosis.diagnose import Diagnosis, diagnose, diagnose_samples
from lapwing.evaluation.diagnosis.statistics import Check, Family, directions_of

__all__ = ["Check", "Diagnosis", "Family", "diagnose", "diagnose_samples", "directions_of"]
