"""What a predictor scores: on the test data, against what is from elsewhere, under shifts, on many labels at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from lapwing.comparison.examples import Examples, checksum_of
from lapwing.comparison.joint import joint_values
from lapwing.comparison.table import SHIFTED
from lapwing.evaluation.evaluate import Evaluation, Predictor, evaluated, predict_options
from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Source, Unpack
from lapwing.metrics.elements import elements, top
from lapwing.predictive import Link


@final
@dataclass(frozen=True, eq=False)
class Further:
    """What is scored beside the test data.

    Args:
        scores: By name.
        values: The numbers of single examples that they are of.
        order: A number that tells the targets of shifted data, in their order, from others.
    """

    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    values: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    order: int = 0


@final
@dataclass(frozen=True, eq=False)
class Scoring:
    """On what every method is scored in one run.

    Args:
        test: Held-out data.
        ood: Data from elsewhere, or their inputs.
        shifts: Held-out data that were made worse, by name.
        draws: Functions that are drawn for the joint log-likelihood; 0 for none.
        unpack: Splits one element of a loader.
        link: How posteriors average over the uncertainty of the logits; ``None`` for each one's own.
        generator: Source of randomness.
        run: What tells this run from others.
    """

    test: Source
    ood: Source | Inputs | None
    shifts: Mapping[str, Source]
    draws: int
    unpack: Unpack | None
    link: Link | None
    generator: torch.Generator | None
    run: str

    @property
    def further(self) -> bool:
        """Whether there is more than the test data to be scored on."""
        return bool(self.shifts) or self.draws > 0

    def on_test(self, predictor: Predictor, link: Link | None) -> Evaluation:
        """The scores of ``evaluate``, with what is from elsewhere.

        Args:
            predictor: What is scored.
            link: Its own link; ``None`` for that of all.
        """
        return evaluated(predictor, self.test, ood=self.ood, unpack=self.unpack, **self._options(predictor, link))

    def further_scores(self, predictor: Predictor, link: Link | None) -> Further:
        """Scores under each shift and of many labels at once, and the numbers of single examples that they are of.

        Args:
            predictor: What is scored.
            link: Its own link; ``None`` for that of all.
        """
        scores = dict[str, float]()
        values = dict[str, Tensor]()
        order = 0
        options = self._options(predictor, link)
        for name, source in self.shifts.items():
            found = evaluated(predictor, source, unpack=self.unpack, **options)
            scores |= {f"{score}:{name}": found.scores[score] for score in ("nll", *SHIFTED) if score in found.scores}
            values[f"nll:{name}"] = found.losses
            if "targets" in found.terms:
                order = checksum_of(found.terms["targets"], order)
        if self.draws:
            joint = joint_values(predictor, self.test, self.draws, unpack=self.unpack, generator=self.generator)
            if joint is not None:
                scores["joint"] = joint.estimate(per_label=True).value
                values["joint"] = joint.values / joint.labels
                values["groups"] = torch.tensor(joint.group_sizes, dtype=torch.int32)
        return Further(scores, values, order)

    def examples(self, of_test: Evaluation, further: Further) -> Examples:
        """What is kept of the single examples.

        Args:
            of_test: On the test data.
            further: Beside that.
        """
        terms = of_test.terms
        values = {"nll": of_test.losses, **further.values}
        if "probs" in terms and "targets" in terms:
            confidence, correct = top(*elements(terms["probs"], terms["targets"]))
            values |= {"confidence": confidence, "correct": correct.to(torch.uint8)}
        if len(of_test.foreign):
            values |= {"familiar": of_test.familiar, "foreign": of_test.foreign}
            values["foreign_uncertainty"] = of_test.foreign_uncertainty
        targets = checksum_of(terms["targets"], further.order) if "targets" in terms else len(of_test.losses)
        return Examples.of(self.run, targets, values)

    def _options(self, predictor: Predictor, link: Link | None) -> dict[str, Any]:
        """What ``predict`` is told, where it takes it."""
        taken = predict_options(predictor)
        options = dict[str, Any]()
        if "link" in taken:
            options["link"] = link or self.link
        if "generator" in taken:
            options["generator"] = self.generator
        return options
