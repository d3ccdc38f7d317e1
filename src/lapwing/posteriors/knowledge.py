"""The scale of knowledge: a prior precision of its own, at which a posterior tells what it knows and what not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConfigError

KEPT = 256
"""Familiar inputs whose epistemic uncertainty is kept, at most."""


@final
@dataclass(frozen=True, eq=False)
class KnowledgeScale:
    """At which prior precision error bars are told, and how large they are at familiar inputs.

    One precision cannot serve two purposes. Probabilities keep the one that predicts best, which may be so strong that
    nothing is uncertain; what a network knows of an input is told at ``factor`` times it.

    Args:
        factor: Of the prior precisions, at most 1.
        familiar: ``Predictive.epistemic`` of familiar inputs there, ascending, float32, which every device has.
        held_out: Whether these were held out; else the network was trained on them.
        certain: Whether at the scale that predicts nothing is uncertain: probabilities are the network's own.

    Raises:
        ConfigError: If the factor is not in (0, 1], or there are no familiar inputs.
    """

    factor: float
    familiar: Float[Tensor, " m"]
    held_out: bool
    certain: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.factor <= 1.0:
            raise ConfigError("a factor of the prior precision in (0, 1]", f"{self.factor}", "lw.tune(posterior)")
        if not len(self.familiar):
            raise ConfigError("familiar inputs", "none", "lw.tune(posterior), which looks at some")

    def __repr__(self) -> str:
        kind = "held-out" if self.held_out else "training"
        return f"KnowledgeScale({self.factor:.3g} times the prior precision, {len(self.familiar)} {kind} inputs)"
