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
    nothing is uncertain; what a network knows of an input is told at ``factor`` times it, and that of the last layer,
    where it has one of its own, at ``head_factor`` times it.

    Args:
        factor: Of the prior precisions, at most 1.
        familiar: ``Predictive.epistemic`` of familiar inputs there, ascending, float32, which every device has.
        held_out: Whether these were held out; else the network was trained on them.
        certain: Whether at the scale that predicts nothing is uncertain: probabilities are the network's own.
        head: Parameters of the last layer, whose prior has another factor; none where all weights have one.
        head_factor: Of their precision.

    Raises:
        ConfigError: If a factor is not in (0, 1], or there are no familiar inputs.
    """

    factor: float
    familiar: Float[Tensor, " m"]
    held_out: bool
    certain: bool = False
    head: tuple[str, ...] = ()
    head_factor: float = 1.0

    def __post_init__(self) -> None:
        for factor in (self.factor, self.head_factor):
            if not 0.0 < factor <= 1.0:
                raise ConfigError("a factor of the prior precision in (0, 1]", f"{factor}", "lw.tune(posterior)")
        if not len(self.familiar):
            raise ConfigError("familiar inputs", "none", "lw.tune(posterior), which looks at some")

    @property
    def weaker(self) -> bool:
        """Whether any prior precision is another than the one that predicts."""
        return min(self.factor, self.head_factor) < 1.0

    def in_words(self, precision: float = 1.0) -> str:
        """What a prior precision is at this scale, in the last layer too where that has one of its own.

        Args:
            precision: The one that predicts; 1 gives the factors.

        Example:
            >>> import torch
            >>> KnowledgeScale(0.5, torch.ones(3), False, head=("out.weight",), head_factor=0.25).in_words(8.0)
            '4, 2 in the last layer'
        """
        words = f"{self.factor * precision:.3g}"
        return words if not self.head else f"{words}, {self.head_factor * precision:.3g} in the last layer"

    def __repr__(self) -> str:
        kind = "held-out" if self.held_out else "training"
        return f"KnowledgeScale({self.in_words()} times the prior precision, {len(self.familiar)} {kind} inputs)"
