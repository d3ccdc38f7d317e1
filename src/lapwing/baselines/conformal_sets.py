"""Conformal sets of classes: as many as it takes to hold the label with a probability that is guaranteed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast, final, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lapwing.baselines.conformal_quantile import Coverage, OnPredictor, conformal_quantile, predictor_of
from lapwing.evaluation.evaluate import Predictor
from lapwing.evaluation.task import Entry, Task
from lapwing.ground import probes
from lapwing.ground.data.sources import Data, Source, Unpack
from lapwing.ground.errors import ConfigError, UnsupportedError, check_count, check_fraction, check_option
from lapwing.ground.labels import IGNORED
from lapwing.ground.precision import wide
from lapwing.ground.progress import working
from lapwing.jacobian.network.modes import undisturbed
from lapwing.predictive import Classification, Predictive

SetScore: TypeAlias = Literal["adaptive", "split"]
"""By what classes enter a set: with those more probable than they are, or by their own probability."""

ROUNDING = 1e-6
"""Of sums of probabilities in float32: scores that differ by less are the same. It makes sets larger only."""


@final
@dataclass(frozen=True)
class ConformalSets:
    """Sets of classes that hold the label with a probability of at least ``level``, whatever predicts.

        set(x) = {c: s_c(x) ≤ q},   q = the ⌈(n + 1) level⌉-th smallest of s_y of n held-out examples
        adaptive: s_c = Σ_{j: p_j > p_c} p_j + u p_c + λ max(0, rank_c - k)
        split:    s_c = 1 - p_c

    The probability is over held-out and new examples, which must be alike; it is not that of one input. Sets of the
    first are larger where the prediction is less sure; of the second they are the smallest on average.

    Args:
        of: What predicts: an entry, which is fitted without the validation data, or a predictor; ``None`` for the plain
            network.
        level: Probability.
        score: ``"adaptive"`` or ``"split"``.
        penalty: λ, what a class costs beyond the k most probable ones; 0 for none.
        free: k.
        randomised: Whether u is uniform from 0 to 1, or 1, for sets without chance.

    Raises:
        ConfigError: If an option makes no sense.

    Cost:
        That of what predicts, and a prediction of the held-out data, of which one number a label is kept.

    Example:
        >>> x = torch.randn(60, 3)
        >>> y = (x + torch.randn(60, 3)).argmax(1)
        >>> fitted = ConformalSets(level=0.8).fit(Task(torch.nn.Identity(), (x, y), validation=(x, y)))
        >>> fitted.sets(x).shape, fitted.coverage((x, y)).share > 0.5
        (torch.Size([60, 3]), True)

    Source: Y. Romano, M. Sesia and E. Candès, Classification with Valid and Adaptive Coverage, 2020 (APS); A.
        Angelopoulos, S. Bates, J. Malik and M. I. Jordan, Uncertainty Sets for Image Classifiers using Conformal
        Prediction, 2021 (RAPS, the penalty); M. Sadinle, J. Lei and L. Wasserman, Least Ambiguous Set-Valued
        Classifiers with Bounded Error Levels, 2019 (split).
    """

    of: Entry | Predictor | None = None
    level: float = field(default=0.9, kw_only=True)
    score: SetScore = field(default="adaptive", kw_only=True)
    penalty: float = field(default=0.0, kw_only=True)
    free: int = field(default=1, kw_only=True)
    randomised: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        check_fraction("level", self.level, "level=0.9")
        check_option("score", self.score, get_args(SetScore))
        check_count("free", self.free, 0)
        if self.penalty < 0 or (self.penalty and self.score == "split"):
            raise ConfigError(
                "a penalty of at least 0, of adaptive scores", f"penalty={self.penalty}", "score='adaptive'"
            )

    def fit(self, task: Task) -> PredictionSets:
        """Sets for a task, calibrated by its validation data.

        Args:
            task: The network and its data.

        Raises:
            ConfigError: If there are no validation data.
            DataError: If there are too few of them for the level.
            UnsupportedError: If targets are no classes.
        """
        held_out = task.held_out("ConformalSets")
        predictor = predictor_of(self.of, task, "ConformalSets")
        return self.on(predictor, held_out, unpack=task.unpack, generator=task.generator)

    @undisturbed()
    @working("conformal sets")
    def on(
        self,
        predictor: Predictor,
        held_out: Source,
        *,
        unpack: Unpack | None = None,
        generator: torch.Generator | int | None = None,
    ) -> PredictionSets:
        """Sets on top of a predictor, calibrated by data that it has not seen, nor been tuned by.

        Args:
            predictor: What predicts.
            held_out: Those data.
            unpack: Splits what a loader yields into inputs and targets.
            generator: Source of randomness of u, or the seed of one.

        Raises:
            DataError: If there are too few examples for the level.
            UnsupportedError: If targets are no classes.
        """
        if not predictor.likelihood.classes:
            got = type(predictor.likelihood).__name__
            raise UnsupportedError("the Categorical likelihood for sets of classes", got, "ConformalIntervals()")
        seed = probes.seed_from(generator)
        source = torch.Generator().manual_seed(seed)
        found: list[Tensor] = []
        for batch in Data(held_out, unpack=unpack):
            prediction = predictor.predict(batch.inputs)
            labels = predictor.likelihood.targets_of(prediction, batch.targets)
            kept = labels != IGNORED
            scores = self.scores(probabilities(prediction)[kept], source)
            found.append(scores.gather(-1, labels[kept][:, None].to(scores.device))[:, 0].cpu())
        threshold = float(conformal_quantile(torch.cat(found), self.level))
        return PredictionSets(
            predictor, replace(self, of=None), threshold, seed + 1
        )  # u unlike that of the calibration

    def scores(self, probs: Float[Tensor, "*batch c"], generator: torch.Generator) -> Float[Tensor, "*batch c"]:
        """The score of every class, float64: the smaller, the sooner it is in the set.

        Args:
            probs: Probabilities of the classes.
            generator: Source of u, one number a position.
        """
        p = wide(probs)
        if self.score == "split":
            return 1 - p
        ordered, order = p.sort(-1, descending=True)
        u = torch.ones_like(p[..., :1])
        if self.randomised:
            u = probes.uniform(u.shape, like=u, generator=generator)
        rank = torch.arange(1, p.shape[-1] + 1).to(p)
        beyond = self.penalty * (rank - self.free).clamp_min(0)
        in_order = ordered.cumsum(-1) - ordered + u * ordered + beyond
        return torch.zeros_like(p).scatter(-1, order, in_order)


@final
@dataclass(frozen=True, eq=False)
class PredictionSets(OnPredictor):
    """A predictor with sets of classes on top; see ``ConformalSets``.

    Args:
        predictor: What predicts.
        rule: By what classes enter.
        threshold: q.
        seed: Of u, the same at every call.
    """

    rule: ConformalSets
    threshold: float
    seed: int = 0

    def sets(self, x: Any, **options: Any) -> Bool[Tensor, "*batch c"]:
        """Whether each class is in the set of each position, ``[n, *event, c]``.

        Args:
            x: Inputs.
            **options: Of the predictor's own ``predict``.
        """
        return self._sets(self.predict(x, **options), torch.Generator().manual_seed(self.seed))

    @working("coverage")
    def coverage(self, test: Source, *, unpack: Unpack | None = None) -> Coverage:
        """How often the sets hold the label, and how many classes they have.

        Args:
            test: Data that neither trained nor calibrated.
            unpack: Splits what a loader yields into inputs and targets.
        """
        source = torch.Generator().manual_seed(self.seed)
        inside: list[Tensor] = []
        sizes: list[Tensor] = []
        for batch in Data(test, unpack=unpack):
            prediction = self.predict(batch.inputs)
            labels: Int[Tensor, "*batch"] = self.likelihood.targets_of(prediction, batch.targets)
            kept = labels != IGNORED
            sets = self._sets(prediction, source).to(labels.device)[kept]
            inside.append(sets.gather(-1, labels[kept][:, None])[:, 0].cpu())
            sizes.append(sets.sum(-1).cpu())
        return Coverage.of(wide(torch.cat(inside)), wide(torch.cat(sizes)))

    def _sets(self, prediction: Predictive, generator: torch.Generator) -> Bool[Tensor, "*batch c"]:
        return self.rule.scores(probabilities(prediction), generator) <= self.threshold + ROUNDING


def probabilities(prediction: Predictive) -> Float[Tensor, "*batch c"]:
    """Those of a prediction of classes."""
    return cast(Classification, prediction).probs
