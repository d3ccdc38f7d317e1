"""The scale of knowledge: how weak the prior may be until even familiar inputs look unknown."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, take
from lapwing.ground.data.sources import Batch, Data
from lapwing.ground.errors import NumericalError
from lapwing.ground.progress import Bar, clock
from lapwing.posteriors import Posterior
from lapwing.posteriors.knowledge import KEPT, KnowledgeScale
from lapwing.tuning.held_out.examples import evenly, joined
from lapwing.tuning.held_out.search import HeldOutSearch
from lapwing.tuning.held_out.trial import Found
from lapwing.tuning.method import P

logger = logging.getLogger(__name__)

SHARE = 0.4
"""Of the most that could be unknown of a label, log c, what may be unknown of a familiar input's, in the mean.

By ``studies.elsewhere``: with less, sure inputs whose outputs move with many weights look less known than strangers."""

WEAKEST = 1e-6
"""Smallest prior precision that is tried, of weights of about a thousand."""

HALVINGS = 7
"""Of the interval of the logarithm of the factor, from 1e12 to ``WEAKEST`` to a seventh of a decade."""

CERTAIN = 1e-5
"""Nats that, unknown, are none: standard deviations of the logits of a hundredth at most."""


@final
@dataclass(frozen=True)
class FamiliarLimits:
    """How many familiar positions are looked at.

    Args:
        search: For each factor that is tried.
        reference: At the factor that is chosen, to compare other inputs with.
        positions: Of an example at most: of more no scale is sought.
        seconds: It may take, or as long as the fit took where that is longer: beyond, fewer examples are looked at.
        fewest: Examples for each factor however long they take, and four times as many to compare with.
    """

    search: int = 24
    reference: int = 128
    positions: int = 64
    seconds: float = 5.0
    fewest: int = 8

    def examples(self, posterior: Posterior) -> int:
        """How many examples there are to be, for the positions of the reference."""
        return max(2, self.reference // positions_of(posterior))

    def affordable(
        self, posterior: Posterior, few: Sequence[Batch], reference: Sequence[Batch], each: float
    ) -> tuple[list[Batch], list[Batch]]:
        """Those of the examples that there is time for; all of them where several processes have to agree.

        Args:
            posterior: The posterior.
            few: For each factor that is tried.
            reference: To compare with.
            each: Seconds that an example takes.
        """
        searched = sum(map(len, few))
        compared = sum(map(len, reference))
        wanted = each * (HALVINGS * searched + compared)
        share = max(self.seconds, posterior.fit_seconds) / wanted if wanted > 0 else 1.0
        if share >= 1.0 or (posterior.data is not None and posterior.data.shared):
            return list(few), list(reference)
        fewer = joined(list(evenly(few, max(self.fewest, int(share * searched)))))
        return fewer, joined(list(evenly(reference, max(4 * self.fewest, int(share * compared)))))


LIMITS = FamiliarLimits()
"""The usual ones."""


def with_knowledge(
    posterior: P,
    batches: Sequence[Batch],
    *,
    held_out: bool,
    factor: float | None = None,
    limits: FamiliarLimits = LIMITS,
    progress: bool | None,
) -> P:
    """The posterior with a scale of knowledge: error bars that tuning for probabilities cannot switch off.

    Its prior precision is the one it predicts at times a factor, the least that leaves familiar inputs known:

        1/m Σ_i I(y_i; θ) ≤ ``SHARE`` log c

    for the mutual information I of the label of a familiar input and the weights. It falls as the prior grows stronger,
    and takes no labels: whatever the network says of inputs it knows, more of them would not tell much more. Where
    uncertainty has no bound, for real targets and counts, and where each prior is a solve, the factor is the one given.

    Args:
        posterior: The tuned posterior.
        batches: Familiar inputs.
        held_out: Whether they were held out.
        factor: Of the prior precisions; ``None`` for the rule, or 1 where that says nothing.
        limits: How many are looked at.
        progress: Whether to show a progress bar.

    Returns:
        The posterior; the same where outputs are too many to look at, or draws that each prior makes anew.

    Cost:
        Predictions of ``HALVINGS * limits.search + limits.reference`` positions at most, of fewer where these take
        longer than ``limits.seconds`` and than the fit.
    """
    if not batches or not looks(posterior, limits) or posterior.by_draws(batches[0].inputs):
        return posterior
    reference = joined(list(evenly(batches, limits.examples(posterior))))
    few = joined(list(evenly(reference, max(2, limits.search // positions_of(posterior)))))
    most = HALVINGS + 1 if posterior.exact else 1
    with Bar("what is known of familiar inputs", most=most, unit="scales", progress=progress) as bar:
        begun = clock()
        here = epistemic_of(posterior, few)
        few, reference = limits.affordable(posterior, few, reference, (clock() - begun) / sum(map(len, few)))
        if factor is None:
            factor = _least_factor(posterior, few, here, bar) if posterior.exact else 1.0
        there = posterior if factor == 1.0 else posterior.with_prior_factor(factor)
        familiar = epistemic_of(there, reference).float().sort().values
        bar.update()
    if len(familiar) > KEPT:
        places = torch.linspace(0, len(familiar) - 1, KEPT, dtype=torch.float64).round().long()
        familiar = familiar[places.to(familiar.device)]
    kind = "held-out" if held_out else "training"
    least = factor * float(posterior.prior_precisions.min())
    certain = posterior.likelihood.labels and posterior.temperature == 1.0 and bool((here < CERTAIN).all())
    own = "probabilities are the network's own; " if certain else ""
    level = logging.WARNING if certain else logging.INFO
    words = "%serror bars are at prior precision %.3g, by %d %s inputs"
    logger.log(level, words, own, least, len(familiar), kind)
    return replace(posterior, knowledge=KnowledgeScale(factor, familiar, held_out, certain))


def looks(posterior: Posterior, limits: FamiliarLimits = LIMITS) -> bool:
    """Whether a scale is sought: outputs of an example are few."""
    return not posterior.wide and positions_of(posterior) <= limits.positions


def positions_of(posterior: Posterior) -> int:
    """Positions of an example."""
    return posterior.model.width // posterior.model.event[-1]


def _least_factor(posterior: Posterior, batches: Sequence[Batch], here: Float[Tensor, " m"], bar: Bar) -> float:
    """The least factor of the prior precision that leaves familiar inputs known.

    From 1 down to what makes the least precision ``WEAKEST``; a prior so weak that numbers fail is too weak.

    Args:
        posterior: The posterior.
        batches: Familiar inputs.
        here: Their epistemic uncertainty at factor 1.
        bar: Progress.
    """
    bound = most_epistemic(posterior, batches[0].inputs)
    if bound is None or float(here.mean()) > SHARE * bound:
        return 1.0
    low = min(0.0, math.log(WEAKEST / float(posterior.prior_precisions.min())))
    high = 0.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        there = posterior.with_prior_factor(math.exp(middle))
        try:
            known = float(epistemic_of(there, batches).mean()) <= SHARE * bound
        except NumericalError:
            known = False
        if known:
            high = middle
        else:
            low = middle
        bar.update()
    return math.exp(high)


def least_not_rejected(search: HeldOutSearch[Any], found: Found, tuned: Posterior) -> float | None:
    """For real targets and counts the least factor of a tuned prior that held-out data do not reject.

    ``None`` for labels, whose uncertainty has a bound, and where each prior is a solve.

    Args:
        search: Made the choice.
        found: What it found.
        tuned: The posterior it chose.
    """
    before = search.data.posterior
    if tuned.likelihood.labels or not tuned.exact:
        return None
    noise = tuned.noise_scale / before.noise_scale
    chosen = float((tuned.prior_precisions / before.prior_precisions).log().mean()) - math.log(noise)
    weakest = search.weakest_not_rejected(found).log_factor
    return math.exp(min(0.0, weakest - chosen))


def epistemic_of(posterior: Posterior, batches: Sequence[Batch]) -> Float[Tensor, " m"]:
    """``Predictive.epistemic`` of inputs of all processes at the prior of a posterior, logits as they are."""
    found = list[Tensor]()
    for batch in batches:
        (outputs,) = posterior.outputs_each(batch.inputs, [posterior])
        found.append(posterior.likelihood.predictive(outputs, "probit").epistemic.flatten())
    own = torch.cat(found)
    return own if posterior.data is None else posterior.data.joined(own)


def most_epistemic(posterior: Posterior, inputs: Inputs) -> float | None:
    """The largest ``epistemic`` there can be."""
    (outputs,) = posterior.outputs_each(take(inputs, slice(1)), [posterior])
    return posterior.likelihood.predictive(outputs, "probit").most_epistemic


def first_of(data: Data, examples: int) -> list[Batch]:
    """The first training examples of this process; no more are read."""
    found = list[Batch]()
    for batch in data:
        room = examples - sum(map(len, found))
        found.append(batch if len(batch) <= room else Batch(take(batch.inputs, slice(room)), batch.targets[:room]))
        if room <= len(batch):
            break
    return joined(found)
