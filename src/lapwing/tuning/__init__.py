"""Choosing the prior precision and the noise by evidence: its gradient, or MacKay's fixed point."""

from __future__ import annotations

from lapwing.tuning.choices import At, chosen, evidence_at, step, step_of
from lapwing.tuning.gradient import EvidenceGradient
from lapwing.tuning.mackay import MacKay
from lapwing.tuning.method import Method, tune

__all__ = ["At", "EvidenceGradient", "MacKay", "Method", "chosen", "evidence_at", "step", "step_of", "tune"]
