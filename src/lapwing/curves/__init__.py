"""Evidence curves: the log evidence, or a bound on it, over the prior precision."""

from __future__ import annotations

from lapwing.curves.curve import EvidenceCurve, Place, evidence_curve

__all__ = ["EvidenceCurve", "Place", "evidence_curve"]
