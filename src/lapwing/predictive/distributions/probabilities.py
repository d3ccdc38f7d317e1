"""Probabilities of what is one thing or another at each position, given logits that are uncertain."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.moments.outputs import Averaged, Moments
from lapwing.moments.wide import Outputs, WideMoments, at_least_single
from lapwing.predictive.distributions.base import Predictive
from lapwing.predictive.links import SAMPLES, Link

P = TypeVar("P", bound="ProbabilitiesOfLogits")


@dataclass(frozen=True, eq=False, repr=False)
class ProbabilitiesOfLogits(Predictive, abc.ABC):
    """Probabilities whose logits are uncertain; how one follows from the other is the subclass's.

    Args:
        logits: What is known of the logits.
        probs: Predictive probabilities ``[n, *event, c]``, the uncertainty of the logits averaged out; in float32 at
            least, since those of half precision do not add up to 1.
        stderr: Standard error of ``probs`` where they came from Monte Carlo, same shape.
    """

    logits: Outputs
    probs: Float[Tensor, "*batch c"]
    stderr: Float[Tensor, "*batch c"] | None = None

    @classmethod
    def of(
        cls: type[P],
        logits: Outputs,
        link: Link = "qmc",
        *,
        samples: int = SAMPLES,
        generator: torch.Generator | None = None,
    ) -> P:
        """The probabilities of uncertain logits; draws of them are averaged as they are, whatever the link.

        Args:
            logits: What is known of the logits.
            link: How their uncertainty is averaged out.
            samples: Draws for ``link="mc"``.
            generator: Source of randomness for them.

        Raises:
            UnsupportedError: If there is no such link for them.
        """
        linked = partial(cls.linked, link=link, samples=samples, generator=generator)
        probs, stderr = at_least_single(logits).averaged(cls.of_certain, linked)
        return cls(logits, probs, stderr)

    @property
    def latent(self) -> Outputs:
        """See ``Predictive.latent``: the logits."""
        return self.logits

    @abc.abstractmethod
    def cross_entropy(self, probs: Float[Tensor, "*batch c"], targets: Tensor) -> Float[Tensor, " m"]:
        """How unlike other probabilities q these are, -E_q log p in nats, at targets that are not -100.

        Args:
            probs: The others, as ``probs``.
            targets: Targets as a loader has them, by which positions are left out.
        """

    @staticmethod
    @abc.abstractmethod
    def of_certain(logits: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """The probabilities of logits that are known."""

    @staticmethod
    @abc.abstractmethod
    def linked(
        moments: Moments | WideMoments, *, link: Link, samples: int, generator: torch.Generator | None
    ) -> Averaged:
        """Those of Gaussian logits by a link, with their standard error by ``"mc"``."""
