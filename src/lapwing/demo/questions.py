"""What the demo asks: seven questions, each answered by paired differences over seeds, whichever way they go."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from lapwing.comparison import Comparison, Row
from lapwing.comparison.table import Better
from lapwing.ground.results import Estimate, signed
from lapwing.metrics.score_table import aligned

PLAIN = ("plain network", "")
TEMPERATURE = ("temperature scaling", "validation")
NOISE_HELD_OUT = ("plain network", "validation")
AT_WEIGHTS = "evidence at the weights"

SHIFT = "rotated"
"""The name of the shifted digits."""

GAP = "gap"
"""The name of the points in the gap."""

BEYOND = 2.0
"""Standard errors within which a difference is none."""


@final
@dataclass(frozen=True)
class Question:
    """A question, and the number that answers it.

    Args:
        asked: In a few words.
        column: Of a comparison; ``"seconds"`` for those to fit, tune and predict.
        score: The number, with its unit.
        better: Which way it is better.
        of_digits: Whether it is asked of the digits; else of the curve.
    """

    asked: str
    column: str
    score: str
    better: Better
    of_digits: bool = True

    @property
    def heading(self) -> str:
        """The number, with an arrow that says which way it is better."""
        return self.score + {"higher": " ↑", "lower": " ↓", "neither": ""}[self.better]


QUESTIONS = (
    Question("new digits of the kinds it learned", "nll", "NLL, nats", "lower"),
    Question("the same, rotated", f"nll:{SHIFT}", "NLL, nats", "lower"),
    Question("many labels at once", "joint", "nats a label", "higher"),
    Question("kinds of digits it never saw", "ood_auroc", "AUROC", "higher"),
    Question("which digits to leave to a person", "augrc", "AUGRC", "lower"),
    Question("a curve where it has no data", f"nll:{GAP}", "NLL, nats", "lower", of_digits=False),
    Question("what it costs", "seconds", "s a seed", "lower"),
)
"""In the order of the page."""

POSTERIOR = ("KFAC", "default")
"""Who answers for the digits: chosen beforehand, not for its scores."""

OF_CURVE = ("full", "default")
"""Who answers for the curve, likewise."""


@final
@dataclass(frozen=True)
class Answer:
    """A question, the posterior's number, and how far it is from that of another method on the same seeds.

    Args:
        question: What was asked.
        value: Mean of the posterior's numbers over the seeds.
        against: The other method.
        difference: Mean over the seeds of the posterior's number less the other's.
        stderr: Its standard error; ``None`` for a single seed, which has none.
    """

    question: Question
    value: float
    against: str
    difference: float
    stderr: float | None

    @property
    def verdict(self) -> str:
        """``"better"`` or ``"worse"`` beyond two standard errors, else ``"even"``.

        Example:
            >>> Answer(QUESTIONS[0], 0.11, "plain network", -0.033, 0.004).verdict
            'better'
        """
        if self.difference == 0 or abs(self.difference) <= BEYOND * (self.stderr or 0.0):
            return "even"
        sign = 1 if self.question.better == "higher" else -1
        return "better" if sign * self.difference > 0 else "worse"

    @property
    def cell(self) -> str:
        """The difference and what it says, as a table has it."""
        return f"{signed(self.difference, self.stderr)}  {self.verdict:<6}"

    @property
    def written(self) -> str:
        """The posterior's number."""
        return f"{self.value:#.3g}".rstrip(".").replace("-", "−")

    def to_dict(self) -> dict[str, Any]:
        """The answer as a page takes it: a claim, and whether it holds."""
        way = f"{self.question.better} is better"
        claim = f"{self.question.asked}: {self.written} {self.question.score} ({way}), against the {self.against}"
        return {
            "claim": claim[0].upper() + claim[1:],
            "difference": self.difference,
            "stderr": self.stderr,
            "holds": self.verdict == "better",
        }


def answers(digits: Comparison, curve: Comparison) -> tuple[Answer, ...]:
    """The answers to all questions, against the plain network and against temperature scaling.

    Args:
        digits: The digits, over all seeds.
        curve: The curve with a gap, over all seeds.
    """
    found = list[Answer]()
    for question in QUESTIONS:
        comparison = digits if question.of_digits else curve
        posterior = comparison.row(*(POSTERIOR if question.of_digits else OF_CURVE))
        calibrated = TEMPERATURE if question.of_digits else NOISE_HELD_OUT
        own = numbers(posterior, question.column)
        for reference, name in ((PLAIN, PLAIN[0]), (calibrated, CALIBRATED[calibrated])):
            other = numbers(comparison.row(*reference), question.column)
            if own and len(own) == len(other):
                gap = paired(own, other)
                found.append(Answer(question, statistics.fmean(own), name, gap.value, spread(gap)))
    return tuple(found)


CALIBRATED = {TEMPERATURE: "network with temperature scaling", NOISE_HELD_OUT: "network with noise of held-out points"}
"""How a sentence calls the network whose predictions held-out data made honest, of classes and of real targets."""


def numbers(row: Row, column: str) -> tuple[float, ...]:
    """A number of a row for each seed.

    Args:
        row: The method.
        column: As for ``Question``.
    """
    if column != "seconds":
        return row.values(column)
    steps = ("fit_seconds", "tune_seconds", "predict_seconds")
    return tuple(sum(run.get(step, 0.0) for step in steps) for run in row.runs)


def paired(own: Sequence[float], other: Sequence[float]) -> Estimate:
    """Mean difference over the same seeds, with its standard error s/√n (0 for a single seed).

    Args:
        own: Numbers of one method, a seed each.
        other: Those of another.

    Example:
        >>> paired((1.0, 4.0), (0.0, 1.0))
        Estimate(value=2.0, stderr=1.0, samples=2)
    """
    differences = [x - y for x, y in zip(own, other, strict=True)]
    n = len(differences)
    return Estimate(statistics.fmean(differences), statistics.stdev(differences) / math.sqrt(n) if n > 1 else 0.0, n)


def spread(difference: Estimate) -> float | None:
    """The standard error of a difference, where there are seeds to tell it by."""
    return difference.stderr if difference.samples > 1 else None


def table(found: Sequence[Answer], seeds: int) -> str:
    """The answers as text: a line a question, a difference from each of the two others.

    Args:
        found: The answers.
        seeds: How many there were.
    """
    lines = [["question", "score", "posterior", "less plain network's", "less calibrated network's"]]
    for question in QUESTIONS:
        own = [answer for answer in found if answer.question == question]
        if own:
            less_plain = [answer.cell for answer in own if answer.against == PLAIN[0]]
            less_other = [answer.cell for answer in own if answer.against != PLAIN[0]]
            cells = [*(less_plain or ["–"]), *(less_other or ["–"])]
            lines.append([question.asked, question.heading, own[0].written, *cells])
    words = [
        f"Questions: {POSTERIOR[0]} is asked of the digits, {OF_CURVE[0]} of the curve, against the network as it is,",
        "and against it with temperature scaling, or of the curve with the noise of held-out points. Differences are",
        f"paired, means over {seeds} seeds ± one standard error; even is within two of them."
        if seeds > 1
        else "of one seed, without a standard error.",
    ]
    return "\n".join([*words, *aligned(lines, 2)])
