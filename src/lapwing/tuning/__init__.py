"""Choosing the prior precision and the noise by evidence: its gradient, MacKay's fixed point, or EM at its mode."""

from __future__ import annotations

from lapwing.tuning.choices import At, chosen, evidence_at, step, step_of, tunes_noise
from lapwing.tuning.elbo import ELBO
from lapwing.tuning.em import EM
from lapwing.tuning.gradient import EvidenceGradient
from lapwing.tuning.mackay import MacKay
from lapwing.tuning.method import Method, tune

__all__ = [
    "ELBO",
    "EM",
    "At",
    "EvidenceGradient",
    "MacKay",
    "Method",
    "chosen",
    "evidence_at",
    "step",
    "step_of",
    "tune",
    "tunes_noise",
]
