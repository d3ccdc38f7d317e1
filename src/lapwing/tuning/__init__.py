"""Choosing prior precision, noise and link: by held-out data, by mixtures of training inputs, by evidence."""

from __future__ import annotations

from lapwing.tuning.choices import At, chosen, evidence_at, step, step_of, tunes_noise
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
    "chosen",
    "evidence_at",
    "step",
    "step_of",
    "tune",
    "tunes_noise",
]
