"""Choosing prior precision, noise and link: by held-out data, by mixtures of training inputs, by evidence."""

from __future__ import annotations

from lapwing.tuning.elbo import ELBO
from lapwing.tuning.em import EM
from lapwing.tuning.evidence import At, evidence_at
from lapwing.tuning.gradient import EvidenceGradient
from lapwing.tuning.held_out import Mixup, Validation
from lapwing.tuning.mackay import MacKay
from lapwing.tuning.method import Method
from lapwing.tuning.tune import tune

__all__ = [
    "ELBO",
    "EM",
    "At",
    "EvidenceGradient",
    "MacKay",
    "Method",
    "Mixup",
    "Validation",
    "evidence_at",
    "tune",
]
