"""Differences of two methods on the same examples, with the standard error of a pair."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lapwing.comparison.examples import Examples
from lapwing.comparison.joint import values_of
from lapwing.ground.precision import wide
from lapwing.metrics import auroc_placements

NOISE = 2.0
"""Standard errors within which a difference is noise."""

PER_EXAMPLE = {"nll": "nll", "accuracy": "correct"}
"""Scores that are means over examples, by the name of the examples' numbers; a shifted NLL is one too."""


@final
@dataclass(frozen=True)
class Difference:
    """A score less that of the reference, on the same examples.

    Args:
        value: The mean difference over the runs.
        stderr: Its standard error for other test data, s/√n of the differences of single examples. Of several runs on
            the same test data each example counts by its mean over the runs.
        over_runs: Its standard error over the runs, s/√r of their means; NaN for one run.
        runs: How many runs both have.

    Example:
        >>> Difference(-0.02, 0.004, 0.003, 5).noise, Difference(-0.02, 0.008, 0.01, 5).noise
        (False, True)
    """

    value: float
    stderr: float
    over_runs: float = math.nan
    runs: int = 1

    @property
    def error(self) -> float:
        """Both errors together: √(stderr² + over_runs²), which counts twice what other examples do from run to run."""
        return self.stderr if math.isnan(self.over_runs) else math.hypot(self.stderr, self.over_runs)

    @property
    def noise(self) -> bool:
        """Whether it is within two standard errors; an infinite one is not."""
        return not math.isinf(self.value) and not abs(self.value) > NOISE * self.error

    @property
    def sign(self) -> int:
        """-1 or 1 for a difference beyond noise, else 0."""
        if self.noise:
            return 0
        return 1 if self.value > 0 else -1


def paired(ours: Sequence[Examples], theirs: Sequence[Examples], score: str) -> Difference | None:
    """The difference of a score from one method to another, over the runs that both have.

    Args:
        ours: What was kept of single examples, one a run.
        theirs: That of the reference.
        score: ``nll``, ``accuracy``, ``nll:NAME`` under a shift, ``joint``, or ``ood_auroc``.

    Returns:
        ``None`` for a score that is no mean over examples, and where no run of both has it.

    Example:
        >>> ours = Examples("0", 7, {"nll": torch.tensor([0.5, 0.25, 0.75])})
        >>> theirs = Examples("0", 7, {"nll": torch.tensor([1.0, 0.5, 1.0])})
        >>> found = paired([ours], [theirs], "nll")
        >>> round(found.value, 4), round(found.stderr, 4)
        (-0.3333, 0.0833)
    """
    reference = {(each.run, each.targets): each for each in theirs}
    pairs = [(each, reference[each.run, each.targets]) for each in ours if (each.run, each.targets) in reference]
    if score == "ood_auroc":
        return _combined([_auroc_difference(*pair) for pair in pairs])
    if score == "joint":
        return _combined([_joint_difference(*pair) for pair in pairs])
    name = PER_EXAMPLE.get(score, score)
    both = [pair for pair in pairs if all(name in each.values for each in pair)]
    if not both or not (score in PER_EXAMPLE or score.startswith("nll:")):
        return None
    gaps = [wide(one.values[name]) - wide(other.values[name]) for one, other in both]
    means = [float(gap.mean()) for gap in gaps]
    same = len({each.targets for each, _ in both}) == 1
    examples = torch.stack(gaps).mean(0) if same else torch.cat(gaps)
    return Difference(statistics.fmean(means), _stderr(examples), _over_runs(means), len(both))


def _auroc_difference(ours: Examples, theirs: Examples) -> tuple[float, float] | None:
    """The difference of two AUROC, and its standard error (DeLong et al. 1988)."""
    if not all(name in each.values for each in (ours, theirs) for name in ("familiar", "foreign")):
        return None
    one = auroc_placements(ours.values["familiar"], ours.values["foreign"])
    other = auroc_placements(theirs.values["familiar"], theirs.values["foreign"])
    familiar = one[0] - other[0]
    foreign = one[1] - other[1]
    return float(foreign.mean()), math.hypot(_stderr(familiar), _stderr(foreign))


def _joint_difference(ours: Examples, theirs: Examples) -> tuple[float, float] | None:
    """The difference of two joint log-likelihoods a label on the same batches, and its standard error."""
    if not all("joint" in each.values for each in (ours, theirs)):
        return None
    groups = ours.values["groups"].tolist()
    if groups != theirs.values["groups"].tolist():
        return None
    one, other = (values_of(each.values["joint"], groups) for each in (ours, theirs))
    estimate = one.less(other).estimate()
    return estimate.value, estimate.stderr


def _combined(found: Sequence[tuple[float, float] | None]) -> Difference | None:
    """One difference of those of several runs: their test data count as the same, and so does their error."""
    known = [each for each in found if each is not None]
    if not known:
        return None
    means = [value for value, _ in known]
    errors = [stderr for _, stderr in known]
    return Difference(statistics.fmean(means), statistics.fmean(errors), _over_runs(means), len(known))


def _stderr(values: Tensor) -> float:
    """s/√n; infinite for a single number."""
    n = values.numel()
    return float(values.std()) / math.sqrt(n) if n > 1 else math.inf


def _over_runs(means: Sequence[float]) -> float:
    """s/√r of the means of the runs; NaN for one."""
    return statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else math.nan
