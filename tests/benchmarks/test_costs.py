"""The plan of the page of costs is arithmetic, and the page has the tables of the committed report."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from torch import nn

from benchmarks import costs
from benchmarks.report import Row

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "benchmarks" / "results" / "costs.json"


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(4 * 8 * 8, 10))


@cache
def counted() -> Row:
    """What the network takes, counted once."""
    return costs.counted(network, 8)


def measured(structure: str, step: str, seconds: float, label: str = "") -> Row:
    row = {"structure": structure, "step": step, "seconds": seconds, "label": label, "passes": seconds / 3}
    case = {"part": "measured", "size": 8, "images": 2, "peak_mib": 1.0}
    return case | row | costs.an_image(row, 2)


ROWS: list[Row] = [
    *(measured(kind, step, s) for kind in ("products", "kfac") for step, s in (("forward", 2.0), ("pass", 6.0))),
    measured("products", "product", 68.0, "17"),
    measured("kfac", "fit without decompositions", 10.0),
    measured("kfac", "second prediction", 5.0),
    {"part": "eigh", "side": 27, "seconds": 1.0},
]


def test_operations_are_those_of_the_layers() -> None:
    """A product and a sum are two; a convolution has 8 x 8 places, and the linear layer a bias."""
    assert counted()["forward"] == 2 * (64 * 27 * 4 + 256 * 10)
    assert counted()["inputs"] == 2 * (64 * 27**2 + 257**2) and counted()["outputs"] == 2 * (64 * 4**2 + 10**2)
    assert counted()["sides"] == [4, 10, 27, 257] and counted()["weights"] == 108 + 2570


def test_the_plan_of_what_was_measured_has_the_seconds_that_were_measured() -> None:
    rows = {row.get("work", ""): row for row in costs.plan(ROWS, counted(), counted())}
    n, rate = costs.EXAMPLES, counted()["forward"]  # a forward pass takes a second an image, a pass three
    sums, eigh = (counted()["inputs"] + counted()["outputs"]) / rate, (4**3 + 10**3 + 27**3 + 257**3) / 27**3
    fit, step = rows["KFAC fit, one sampled label"], rows["EM step, 16 draws"]
    assert fit["core"] == pytest.approx(n * (3 + sums) + eigh)
    assert fit["gpu"] == pytest.approx(n * (3 + sums) * rate / costs.H200 + eigh)
    assert step["core"] == pytest.approx(n * 11 * (17 * 2 + 1))
    sent = 4 * counted()["weights"] * 17
    assert step["sent"] == sent
    assert step["gpus"] == pytest.approx(step["gpu"] / 8 + 11 * 2 * sent / costs.LINK)
    assert rows["prediction of one input, KFAC"]["core"] == pytest.approx(5.0 * 1000 / 10)
    assert rows["prediction of one input, 16 draws"]["core"] == pytest.approx(1 + 16 * 2)
    assert rows["KFAC fit of the measured network"]["planned"] == pytest.approx(3 + sums)


def test_the_tables_have_a_line_for_everything_and_say_what_was_not_timed() -> None:
    text = costs.page([*ROWS, *costs.plan(ROWS, counted(), counted())])
    assert (
        "| forward pass | 8 x 8 | 2 | 1 |" in text and "| product with a column, 17 at once | 8 x 8 | 2 | 2 |" in text
    )
    assert "by 9 m³" in text and text.count("prediction of one input") == 2


def test_the_page_has_the_tables_of_the_report() -> None:
    assert costs.PAGE.read_text(encoding="utf-8") == costs.page(json.loads(REPORT.read_text(encoding="utf-8"))["rows"])
