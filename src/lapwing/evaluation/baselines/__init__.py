"""What a Laplace approximation must beat: the plain network, and one temperature."""

from __future__ import annotations

from lapwing.evaluation.baselines.map import Map
from lapwing.evaluation.baselines.temperature import Temperature

__all__ = ["Map", "Temperature"]
