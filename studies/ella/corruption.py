"""Scores on corrupted test images, 14 kinds at 5 severities, by severity.

python -m studies.ella corruption --data DIR --json FILE --figure FILE [--seeds 1] [--only plain ELLA ...]

Every method sees the same images; 240 of the test images are corrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

import lapwing as lw
from benchmarks.cost import timed
from studies.ella.contenders import contenders
from studies.ella.setting import Amount, Case, Setting
from studies.predictors import Batched
from studies.report import Row, figure
from studies.seeds import generator

SCORES = ("nll", "ece", "accuracy")
SEVERITIES = range(6)
COLUMNS = (*(f"{score}_{k}" for score in SCORES for k in SEVERITIES), "seconds")


def rows(setting: Setting) -> Iterator[Row]:
    """A row for each network, method and seed of the landmarks."""
    for case in setting.cases(("ella_resnet20",)):
        for name, seed, predictor, failure in contenders(case, setting):
            head: Row = {"study": "corruption", "part": case.task.name, "method": name, "failure": failure}
            head |= {} if seed is None else {"seed": seed}
            yield head if predictor is None else head | swept(predictor, case, setting.amount)


def swept(predictor: Any, case: Case, amount: Amount) -> Row:
    """Means over the corruptions at each severity; 0 are the same images as they were."""
    task = case.task
    chosen = torch.linspace(0, len(task.pixels) - 1, min(amount.corrupted, len(task.pixels))).round().long()
    sweep, seconds = timed(
        lambda: lw.corruption_sweep(
            Batched(predictor),
            task.pixels[chosen],
            task.test[1][chosen],
            names=amount.corruptions,
            transform=task.transform,
            generator=generator(2),
        )
    )
    row: Row = {"corrupted_images": len(chosen), "seconds": seconds}
    for score in SCORES:
        row |= {f"{score}_{severity}": value for severity, value in sweep.by_severity(score).items()}
        row[score] = {name: [at[score] for at in found] for name, found in sweep.corrupted.items()}
    return row


def draw(found: Sequence[Row]) -> Any:
    """NLL, ECE and accuracy by severity."""
    means = [row for row in found if row.get("summary") and "nll_0" in row]
    made = figure(13, 4, len(SCORES))
    for panel, score in zip(made.axes, SCORES, strict=True):
        for row in means:
            several = len({other["part"] for other in means}) > 1
            label = f"{row['method']}, {row['part']}" if several else row["method"]
            panel.plot(SEVERITIES, [row[f"{score}_{k}"] for k in SEVERITIES], marker="o", label=label)
        panel.set(xlabel="severity", ylabel={"nll": "NLL, nats", "ece": "ECE"}.get(score, score))
        panel.legend(frameon=False, fontsize=8)
    return made
