"""Choosing by predictions at inputs that the network has not fitted: held-out data, or mixtures of training inputs."""

from __future__ import annotations

from lapwing.tuning.held_out.mixup import Mixup
from lapwing.tuning.held_out.validation import Validation

__all__ = ["Mixup", "Validation"]
