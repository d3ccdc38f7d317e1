"""Test NLL against what ELLA is given: training images, with and without early stopping, and the rank K.

    python -m studies.ella stopping --data DIR --json FILE --figure FILE [--networks cnn ella_resnet20]
    python -m studies.ella rank --data DIR --json FILE --figure FILE [--networks cnn ella_resnet20]

*Stopping*: one fit over all training images, watched on the test images and never stopped, gives the whole curve;
another, watched on the validation images, says where early stopping ends, and the curve of the former what that is
worth. *Rank*: each has its own fit, from the same landmarks, stopped early by the validation images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.command import Setting
from benchmarks.report import Row, by_panel, curve
from benchmarks.tasks import Drawn
from studies.ella.setting import amount_of, cases, ella, scores, watched

STOPPING = (
    "nll_plain", "nll_stopped", "nll_all", "nll_best", "stopped_at", "best_at", "kernel_error", "fit_seconds"
)  # fmt: skip
RANK = ("nll", "nll_over_plain", "ece", "accuracy", "stopped_at", "kernel_error", "fit_seconds", "predict_seconds")
NEVER = 10**9


def stopping(setting: Setting) -> Iterator[Row]:
    """A row for each network and seed of the landmarks.

    Test NLL, stopped early by validation images and with all training images in the posterior; K = 20, M = 500, the
    paper's prior, without the residual.
    """
    amount = amount_of(setting)
    for case in cases(setting, ("cnn",)):
        for seed in setting.repeats:
            whole, row = ella(case, amount, seed, stopping=watched(case.test, amount, patience=NEVER))
            stopped, cost = ella(case, amount, seed, stopping=watched(case.held_out, amount))
            curve = dict(whole.report.trace)
            best = min(curve, key=curve.__getitem__)
            row |= {"nll_plain": case.plain, "nll_all": curve[max(curve)], "nll_best": curve[best]}
            row |= {"nll_stopped": curve[stopped.totals.examples], "stopped_at": cost["stopped_at"]}
            row |= {"best_at": float(best), "validation": cost["trace"], "fit_seconds": cost["fit_seconds"]}
            yield {"part": case.name, "seed": seed} | row


def draw_stopping(found: Sequence[Row]) -> Any:
    """The curves of every network, and where early stopping ended."""
    made, panels = by_panel([row for row in found if "trace" in row], "part", 5, 4)
    for panel, part, own in panels:
        for row in own:
            points = [(n, nll) for n, nll in row["trace"] if n]
            (drawn,) = panel.plot(*zip(*points, strict=True), label=f"landmarks {row['seed']}")
            panel.plot([row["stopped_at"]], [row["nll_stopped"]], "o", color=drawn.get_color())
        panel.axhline(own[0]["nll_plain"], color="0.5", ls="--", label="plain network")
        panel.set(xlabel="training images N (dot: early stopping)", ylabel="test NLL, nats", title=part)
        panel.set(ylim=(0.9 * min(row["nll_best"] for row in own), 1.5 * own[0]["nll_plain"]))
        panel.legend(frameon=False, fontsize=7)
    return made


def rank(setting: Setting) -> Iterator[Row]:
    """A row for each network, rank and seed of the landmarks.

    Test scores against K at M = 500 landmarks, stopped early by validation images, the paper's prior.
    """
    amount = amount_of(setting)
    for case in cases(setting, ("cnn",)):
        for seed in setting.repeats:
            for k in amount.ranks:
                head: Row = {"part": case.name, "rank": k, "seed": seed}
                posterior, row = ella(case, amount, seed, stopping=watched(case.held_out, amount), rank=k)
                yield head | {"nll_plain": case.plain} | row | scores(Drawn(posterior, amount.samples), case)


def draw_rank(found: Sequence[Row]) -> Any:
    """Means over the landmarks with their standard errors."""
    made, panels = by_panel([row for row in found if row.get("summary")], "part", 5, 4)
    for panel, part, own in panels:
        curve(panel, own, "rank", "nll", label="ELLA")
        panel.axhline(own[0]["nll_plain"], color="0.5", ls="--", label="plain network")
        panel.set(xlabel="rank K", ylabel="test NLL, nats", xscale="log", title=part)
        panel.legend(frameon=False, fontsize=8)
    return made
