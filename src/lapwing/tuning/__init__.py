"""Choosing prior precision, noise and link: by held-out data, by mixtures of training inputs, by evidence."""

from __future__ import annotations

from lapwing.tuning.choices import At, evidence_at
from lapwing.tuning.elbo import ELBO
from lapwing.tuning.em import EM
from lapwing.tuning.evidence import EvidenceGradient, MacKay
from lapwing.tuning.method import Method, tune
from lapwing.tuning.mixup import Mixup
from lapwing.tuning.validation import Validation

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
