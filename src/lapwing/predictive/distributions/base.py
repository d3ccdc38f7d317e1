"""What every predictive distribution answers: the density of a target, how unsure it is, and its scores."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lapwing.ground.errors import ShapeError, UnsupportedError
from lapwing.ground.precision import wide
from lapwing.ground.results import Shown
from lapwing.metrics.score_table import Scores
from lapwing.moments.wide import Outputs


@final
@dataclass(frozen=True, eq=False, repr=False)
class Knowledge(Shown):
    """What is known of the outputs at a prior precision of its own, and how well familiar inputs are known there.

    Args:
        outputs: What is known of the outputs.
        familiar: ``epistemic`` of familiar inputs, ascending; ``None`` where none were looked at.
    """

    outputs: Outputs
    familiar: Float[Tensor, " m"] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Predictive(Shown, abc.ABC):
    """A distribution of targets at each position, the uncertainty of the outputs averaged out.

    Positions are ``[n, *event]``, examples and their event axes. A new kind of target needs one subclass, which its
    likelihood makes of what is known of the outputs.

    Args:
        knowledge: The outputs at the scale of knowledge; ``None`` where that is the scale that predicts.
        strangeness: A score by which a predictor tells inputs from elsewhere, larger for them, ``[n, *event]``;
            ``None`` for one that has none beside its uncertainty.
    """

    epistemic_unit: ClassVar[str] = "unit of the targets"
    """Of ``epistemic``."""

    uncertainty_unit: ClassVar[str] = "unit of the targets"
    """Of ``uncertainty``."""

    knowledge: Knowledge | None = field(default=None, kw_only=True)
    strangeness: Float[Tensor, "*batch"] | None = field(default=None, kw_only=True)

    @property
    @abc.abstractmethod
    def latent(self) -> Outputs:
        """What is known of the outputs that the targets belong to, at the scale that predicts."""

    @property
    def location(self) -> Float[Tensor, "*batch c"]:
        """Mean of the outputs that the targets belong to, ``[n, *event, c]``."""
        return self.latent.mean

    @final
    @property
    def known(self) -> Outputs:
        """What is known of these outputs at the scale of knowledge: ``known.std`` are their error bars."""
        return self.latent if self.knowledge is None else self.knowledge.outputs

    @property
    def epistemic(self) -> Float[Tensor, "*batch"]:
        """How much is unknown for lack of data like these, ``[n, *event]``: summed standard deviations of ``known``.

        Of classes and labels it is a mutual information, see there.
        """
        return self.known.std.sum(-1)

    @property
    def most_epistemic(self) -> float | None:
        """The largest ``epistemic`` there can be; ``None`` where it has no bound, as for real targets."""
        return None

    @final
    @property
    def unfamiliar(self) -> Float[Tensor, "*batch"]:
        """The share of familiar inputs that are better known than this one, from 0 to 1, ``[n, *event]``.

            u(x) = 1/m Σ_i [epistemic(x_i) < epistemic(x)]

        It means the same for every network: of inputs like the familiar ones, one in twenty is above .95. Familiar are
        those that ``lapwing.tune`` looked at: held-out ones where it was given some, else training inputs.

        Raises:
            UnsupportedError: If no familiar inputs were looked at.
        """
        familiar = None if self.knowledge is None else self.knowledge.familiar
        if familiar is None:
            raise UnsupportedError(
                "a prediction of a posterior that has looked at familiar inputs",
                "one of a predictor that has not",
                "lw.tune(posterior), whose predictions know; .epistemic is not relative to other inputs",
            )
        epistemic = self.epistemic
        below = torch.searchsorted(familiar.to(epistemic), epistemic.contiguous())
        return (wide(below) / len(familiar)).to(epistemic)

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

    @classmethod
    def losses_of(cls, terms: Mapping[str, Tensor]) -> Float[Tensor, " m"]:
        """Negative log predictive density of each target behind some terms, nats; the ``nll`` is their mean."""
        return -wide(terms["log_prob"])

    @final
    def scores(self, targets: Shaped[Tensor, "*target"], *, generator: torch.Generator | None = None) -> Scores:
        """Scores of these targets, as ``lapwing.evaluate`` prints them; arguments as in ``log_prob``."""
        return self.scores_of(self.score_terms(targets, generator=generator))


def check_one_an_output(targets: Tensor, mean: Float[Tensor, "*batch c"]) -> None:
    """Refuse targets of another shape than the outputs', which would be compared with outputs of other examples.

    Args:
        targets: Targets.
        mean: Mean of the outputs.

    Raises:
        ShapeError: If they have.
    """
    if targets.shape != mean.shape:
        hint = "targets[:, None]" if targets.shape == mean.shape[:-1] else "targets of the inputs that were predicted"
        raise ShapeError(f"one target an output, {list(mean.shape)}", f"{list(targets.shape)}", hint)


def plus_diagonal(covariance: Tensor, values: Float[Tensor, "*batch c"]) -> Tensor:
    """Covariance ``[*batch, c, c]``, or joint ``[*batch, c, *batch, c]``, plus a diagonal."""
    if covariance.ndim == 2 * values.ndim:
        return covariance + torch.diag(values.reshape(-1)).reshape(covariance.shape)
    return covariance + torch.diag_embed(values)


def log_of_probability(probs: Tensor) -> Tensor:
    """Log probabilities; one that underflowed counts as the smallest normal number of its dtype."""
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
