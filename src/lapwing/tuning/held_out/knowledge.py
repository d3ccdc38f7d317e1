"""The scale of knowledge: how weak the prior may be until even familiar inputs look unknown."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, take
from lapwing.ground.data.sources import Batch, Data
from lapwing.ground.errors import ConfigError, NumericalError
from lapwing.ground.progress import Bar, clock
from lapwing.posteriors import Posterior
from lapwing.posteriors.knowledge import KEPT, KnowledgeScale
from lapwing.structures.selection import last_layer
from lapwing.tuning.held_out.examples import evenly, joined
from lapwing.tuning.held_out.search import HeldOutSearch
from lapwing.tuning.held_out.trial import Found
from lapwing.tuning.method import P
from lapwing.tuning.noise import noise_level

logger = logging.getLogger(__name__)

SHARE = 0.4
"""Of the most that could be unknown of a label, log c, what may be unknown of a familiar input's, in the mean.

By ``studies.elsewhere``: with less, sure inputs whose outputs move with many weights look less known than strangers.
The last layer and the others, where each has a prior of its own, have half of it."""

WEAKEST = 1e-6
"""Smallest prior precision that is tried, of weights of about a thousand."""

HALVINGS = (4, 3)
"""Of the interval of the logarithm of the factor, from 1e12 to ``WEAKEST`` to a seventh of a decade: so many are
decided at once, by one pass under all factors that they may come to."""

SEVERAL = 3.0
"""Predictions that one under several priors takes, at most."""

NONE_LEFT = 0.9e6
"""Factor of the prior precisions from which no uncertainty to speak of is left: the strongest prior that is tried."""

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
        variances: Bytes the variances of the weights under all priors of a pass may take (768 MiB).
    """

    search: int = 24
    reference: int = 128
    positions: int = 64
    seconds: float = 5.0
    fewest: int = 8
    variances: int = 3 * 2**28

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
        wanted = each * (SEVERAL * len(HALVINGS) * searched + compared)
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
    and takes no labels: whatever the network says of inputs it knows, more of them would not tell much more. Where the
    curvature leaves out what layers have in common, the last layer has a factor of its own, and each of the two, by
    itself, half of the share: see ``separate_head``. Where uncertainty has no bound, for real targets and counts, and
    where each prior is a solve, the factor is the one given; there tuning that leaves no uncertainty gives the factor
    back to the prior before.

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
        Predictions of ``limits.search`` positions under several priors, twice, and of ``limits.reference``; of fewer
        where these take longer than ``limits.seconds`` and than the fit.
    """
    if not batches or not looks(posterior, limits) or posterior.by_draws(batches[0].inputs):
        return posterior
    reference = joined(list(evenly(batches, limits.examples(posterior))))
    few = joined(list(evenly(reference, max(2, limits.search // positions_of(posterior)))))
    most = sum(HALVINGS) + 1 if posterior.exact else 1
    scale = Factors(1.0 if factor is None else factor)
    with Bar("what is known of familiar inputs", most=most, unit="scales", progress=progress) as bar:
        begun = clock()
        here = epistemic_of(posterior, few)
        few, reference = limits.affordable(posterior, few, reference, (clock() - begun) / sum(map(len, few)))
        if factor is None and posterior.exact:
            scale = _least_factors(posterior, few, here, limits, bar)
        familiar = epistemic_of(scale.of(posterior), reference).float().sort().values
        bar.update()
    if len(familiar) > KEPT:
        places = torch.linspace(0, len(familiar) - 1, KEPT, dtype=torch.float64).round().long()
        familiar = familiar[places.to(familiar.device)]
    certain = posterior.likelihood.labels and posterior.temperature == 1.0 and bool((here < CERTAIN).all())
    knowledge = KnowledgeScale(scale.others, familiar, held_out, certain, scale.head, scale.of_head)
    own = "probabilities are the network's own; " if certain else ""
    level = logging.WARNING if certain else logging.INFO
    least = knowledge.in_words(float(posterior.prior_precisions.min()))
    kind = "held-out" if held_out else "training"
    logger.log(level, "%serror bars are at prior precision %s, by %d %s inputs", own, least, len(familiar), kind)
    return replace(posterior, knowledge=knowledge)


@final
@dataclass(frozen=True)
class Factors:
    """By what prior precisions are multiplied.

    Args:
        others: Those of all weights but the head's.
        head: Parameters with a factor of their own; none where all have one.
        of_head: Theirs.
    """

    others: float = 1.0
    head: tuple[str, ...] = ()
    of_head: float = 1.0

    def of(self, posterior: P) -> P:
        """A posterior with prior precisions so multiplied; itself where none changes."""
        if self.others == self.of_head == 1.0:
            return posterior
        if not self.head:
            return posterior.with_prior_factor(self.others)
        return posterior.with_prior_factors(self.others, self.head, self.of_head)


def separate_head(posterior: Posterior, batches: Sequence[Batch]) -> tuple[str, ...]:
    """Parameters of the last layer, where it is to have a prior of its own; none where all weights share one.

    A curvature of independent layers makes the layers before the last too uncertain, and most so at inputs that the
    network is sure of, whose outputs move with many weights: with one factor for all, these are all that is told. The
    last layer by itself tells strangers by their features; the others tell those whose features are familiar.

    Args:
        posterior: The posterior.
        batches: Some inputs.
    """
    network = posterior.network
    if not posterior.leaves_out_correlations or posterior.survey.head or network.index is not None:
        return ()
    try:
        head = last_layer(network, Data([(batches[0].inputs, batches[0].targets)], like=network.like))
    except ConfigError:
        return ()
    others = set(network.names) - set(head)
    return head if others and posterior.prior.split_off(head, network.uncertain) is not None else ()


def looks(posterior: Posterior, limits: FamiliarLimits = LIMITS) -> bool:
    """Whether a scale is sought: outputs of an example are few."""
    return not posterior.wide and positions_of(posterior) <= limits.positions


def positions_of(posterior: Posterior) -> int:
    """Positions of an example."""
    return posterior.model.width // posterior.model.event[-1]


def _least_factors(
    posterior: Posterior, batches: Sequence[Batch], here: Float[Tensor, " m"], limits: FamiliarLimits, bar: Bar
) -> Factors:
    """The least factors of prior precisions that leave familiar inputs known.

    Each from 1 down to what makes the least precision ``WEAKEST``, the others as they predict; a prior so weak that
    numbers fail is too weak.

    Args:
        posterior: The posterior.
        batches: Familiar inputs.
        here: Their epistemic uncertainty at factor 1.
        limits: In how much memory.
        bar: Progress.
    """
    bound = most_epistemic(posterior, batches[0].inputs)
    if bound is None:
        return Factors()
    head = separate_head(posterior, batches)
    share = SHARE / 2 if head else SHARE
    if float(here.mean()) > share * bound:
        return Factors()
    lowest = min(0.0, math.log(WEAKEST / float(posterior.prior_precisions.min())))
    searches = [LogFactor(lowest, 0.0) for _ in range(2 if head else 1)]
    for halvings in halvings_at_once(posterior, len(searches), limits.variances):
        grids = [search.middles(halvings) for search in searches]
        trials = [Factors(math.exp(middle), head) for middle in grids[0]]
        if head:
            trials += [Factors(1.0, head, math.exp(middle)) for middle in grids[1]]
        known = _known(posterior, [trial.of(posterior) for trial in trials], batches, share * bound)
        answers = dict(zip(grids[0], known, strict=False))
        searches[0] = searches[0].halved(answers, halvings)
        if head:
            answers = dict(zip(grids[1], known[len(grids[0]) :], strict=True))
            searches[1] = searches[1].halved(answers, halvings)
        bar.update(halvings)
    found = [math.exp(search.high) for search in searches]
    return Factors(found[0], head, found[-1]) if head else Factors(found[0])


@final
@dataclass(frozen=True)
class LogFactor:
    """Where the logarithm of the least factor is.

    Args:
        low: Too weak, or the end.
        high: Familiar inputs are known there.
    """

    low: float
    high: float

    @property
    def middle(self) -> float:
        """Between them."""
        return 0.5 * (self.low + self.high)

    def middles(self, halvings: int) -> list[float]:
        """All places that so many halvings may come to."""
        if not halvings:
            return []
        below = LogFactor(self.low, self.middle).middles(halvings - 1)
        above = LogFactor(self.middle, self.high).middles(halvings - 1)
        return [*below, self.middle, *above]

    def halved(self, known: Mapping[float, bool], halvings: int = 1) -> LogFactor:
        """What is left after so many halvings.

        Args:
            known: Whether familiar inputs are known at each of ``middles``.
            halvings: How many.
        """
        left = self
        for _ in range(halvings):
            middle = left.middle
            left = LogFactor(left.low, middle) if known[middle] else LogFactor(middle, left.high)
        return left


def halvings_at_once(posterior: Posterior, searches: int, most_bytes: int) -> list[int]:
    """How many halvings of each of some searches are decided by one pass, pass after pass.

    Args:
        posterior: The posterior.
        searches: How many.
        most_bytes: What the variances of the weights under all priors of a pass may take; beyond, each halving has a
            pass of its own.
    """
    priors = searches * (2 ** max(HALVINGS) - 1)
    if 8 * priors * posterior.numbers_by_choice > most_bytes:
        return [1] * sum(HALVINGS)
    return list(HALVINGS)


def _known(posterior: P, trials: Sequence[P], batches: Sequence[Batch], bound: float) -> list[bool]:
    """Whether familiar inputs are known at each of some priors: from one pass, or where numbers fail by halves."""
    try:
        return [float(each.mean()) <= bound for each in epistemic_each(posterior, trials, batches)]
    except NumericalError:
        if len(trials) == 1:
            return [False]
        half = len(trials) // 2
        parts = trials[:half], trials[half:]
        return [known for part in parts for known in _known(posterior, part, batches, bound)]


def least_not_rejected(search: HeldOutSearch[Any], found: Found, tuned: Posterior) -> float | None:
    """For real targets and counts the least factor of a tuned prior that held-out data do not reject.

    ``None`` for labels, whose uncertainty has a bound. Where each prior is a solve see ``factor_to_start``.

    Args:
        search: Made the choice.
        found: What it found.
        tuned: The posterior it chose.
    """
    before = search.data.posterior
    if not tuned.exact:
        return factor_to_start(before, tuned)
    if tuned.likelihood.labels:
        return None
    chosen = log_factor_between(before, tuned)
    weakest = search.weakest_not_rejected(found).log_factor
    return math.exp(min(0.0, weakest - chosen))


def factor_to_start(before: Posterior, tuned: Posterior) -> float | None:
    """The factor back to the prior before, of one that tuning made so strong that no uncertainty is left.

    Under it the prior precisions over that of the noise are as before. ``None`` where some uncertainty is left; and
    where not every prior is a solve, so that a scale can be sought.

    Args:
        before: The posterior that was tuned.
        tuned: What came of it.
    """
    if tuned.exact:
        return None
    apart = log_factor_between(before, tuned)
    return math.exp(-apart) if apart >= math.log(NONE_LEFT) else None


def log_factor_between(before: Posterior, tuned: Posterior) -> float:
    """Logarithm of the factor by which tuning multiplied prior precisions, over that of the noise precision."""
    noise = noise_level(tuned.likelihood) / noise_level(before.likelihood)
    return float((tuned.prior_precisions / before.prior_precisions).log().mean()) - math.log(noise)


def epistemic_of(posterior: Posterior, batches: Sequence[Batch]) -> Float[Tensor, " m"]:
    """``Predictive.epistemic`` of inputs of all processes at the prior of a posterior, logits as they are."""
    return epistemic_each(posterior, [posterior], batches)[0]


def epistemic_each(posterior: P, choices: Sequence[P], batches: Sequence[Batch]) -> list[Float[Tensor, " m"]]:
    """The same at several choices of its prior."""
    found: list[list[Tensor]] = [[] for _ in choices]
    for batch in batches:
        for column, outputs in zip(found, posterior.outputs_each(batch.inputs, choices), strict=True):
            column.append(posterior.likelihood.predictive(outputs, "probit").epistemic.flatten())
    columns = [torch.cat(column) for column in found]
    return columns if posterior.data is None else [posterior.data.joined(column) for column in columns]


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
