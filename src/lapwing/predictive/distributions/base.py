"""What every predictive distribution answers: the density of a target, how unsure it is, and its scores."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lapwing.ground.results import Shown
from lapwing.metrics.score_table import Scores


class Predictive(Shown, abc.ABC):
    """A distribution of targets at each position, the uncertainty of the outputs averaged out.

    Positions are ``[n, *event]``, examples and their event axes. A new kind of target needs one subclass, which its
    likelihood makes of what is known of the outputs.
    """

    @property
    @abc.abstractmethod
    def location(self) -> Float[Tensor, "*batch c"]:
        """Mean of the outputs that the targets belong to, ``[n, *event, c]``."""

    @property
    @abc.abstractmethod
    def uncertainty(self) -> Float[Tensor, "*batch"]:
        """How unsure each position is, ``[n, *event]``: by it foreign examples are told from familiar ones."""

    @abc.abstractmethod
    def log_prob(
        self, targets: Shaped[Tensor, "*target"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, " m"]:
        """Log predictive density log p(y) of every target that is not ignored, nats, summed over a position's outputs.

        Args:
            targets: Canonical targets, as ``Likelihood.targets_of`` gives them.
            generator: Source of randomness, where the density is averaged over draws.

        Returns:
            One number a position that has a target, in order.
        """

    @abc.abstractmethod
    def score_terms(
        self, targets: Shaped[Tensor, "*target"], *, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """What the scores of these targets are made from, by name: a few numbers an output, none a pair of outputs.

        The terms of several batches are put together along the first axis. Arguments as in ``log_prob``.
        """

    @classmethod
    @abc.abstractmethod
    def scores_of(cls, terms: Mapping[str, Tensor]) -> Scores:
        """The scores of all targets behind some terms, by their names in ``lapwing.metrics``."""

    @final
    def scores(self, targets: Shaped[Tensor, "*target"], *, generator: torch.Generator | None = None) -> Scores:
        """Scores of these targets, as ``lapwing.evaluate`` prints them; arguments as in ``log_prob``."""
        return self.scores_of(self.score_terms(targets, generator=generator))


def plus_diagonal(covariance: Tensor, values: Float[Tensor, "*batch c"]) -> Tensor:
    """Covariance ``[*batch, c, c]``, or joint ``[*batch, c, *batch, c]``, plus a diagonal."""
    if covariance.ndim == 2 * values.ndim:
        return covariance + torch.diag(values.reshape(-1)).reshape(covariance.shape)
    return covariance + torch.diag_embed(values)


def log_of_probability(probs: Tensor) -> Tensor:
    """Log probabilities; one that underflowed counts as the smallest normal number of its dtype."""
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
