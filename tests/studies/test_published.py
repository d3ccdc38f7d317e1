from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.command import joined
from studies.ella.page import PAGE as ELLA
from studies.ella.page import page as ella_page
from studies.full.page import PAGE as FULL
from studies.full.page import page as full_page
from studies.published import beside_published

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_a_number_stands_beside_the_printed_one() -> None:
    row = beside_published("NLL", 0.25, 0.282, "table 1")
    assert row == {"verdict": "NLL", "ours": 0.25, "published": 0.282, "place": "table 1"}


@pytest.mark.parametrize(
    ("pattern", "path", "page"), [("full-*.json", FULL, full_page), ("ella-*.json", ELLA, ella_page)]
)
def test_the_tables_of_a_page_are_what_its_reports_say(pattern: str, path: Path, page: Callable[[Any], str]) -> None:
    reports = sorted(RESULTS.glob(pattern))
    assert reports and page(list(joined(reports))) == path.read_text(encoding="utf-8")


def test_printed_numbers_say_where_they_stand() -> None:
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")]
    beside = [row for report in reports for row in report["rows"] if "published" in row and "verdict" in row]
    assert beside and all(isinstance(row["ours"], float | int) and row["place"] for row in beside)
