"""Test NLL against the rank K, at the same number of landmarks, stopped early by the validation images.

python -m studies.ella rank --data DIR --json FILE --figure FILE [--networks cnn ella_resnet20]

Each rank has its own fit, from the same landmarks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from studies.ella.scored import Drawn, ella, scores, watched
from studies.ella.setting import Setting
from studies.report import Row, figure

COLUMNS = ("nll", "nll_over_plain", "ece", "accuracy", "stopped_at", "kernel_error", "fit_seconds", "predict_seconds")


def rows(setting: Setting) -> Iterator[Row]:
    """A row for each network, rank and seed of the landmarks."""
    amount = setting.amount
    for case in setting.cases(("cnn",)):
        for seed in setting.repeats:
            for rank in amount.ranks:
                head: Row = {"study": "rank", "part": case.task.name, "rank": rank, "seed": seed}
                posterior, row = ella(case, amount, seed, stopping=watched(case.task.held_out, amount), rank=rank)
                yield head | {"nll_plain": case.task.plain} | row | scores(Drawn(posterior, amount.samples), case)


def draw(found: Sequence[Row]) -> Any:
    """Means over the landmarks with their standard errors."""
    means = [row for row in found if row.get("summary")]
    parts = list(dict.fromkeys(row["part"] for row in means))
    made = figure(5 * len(parts), 4, len(parts))
    for panel, part in zip(made.axes, parts, strict=True):
        own = [row for row in means if row["part"] == part]
        errors = [row.get("nll_stderr", 0.0) for row in own]
        panel.errorbar([row["rank"] for row in own], [row["nll"] for row in own], errors, marker="o", label="ELLA")
        panel.axhline(own[0]["nll_plain"], color="0.5", ls="--", label="plain network")
        panel.set(xlabel="rank K", ylabel="test NLL, nats", xscale="log", title=part)
        panel.legend(frameon=False, fontsize=8)
    return made
