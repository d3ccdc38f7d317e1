from __future__ import annotations

import json
from pathlib import Path

from studies.published import beside_published

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_a_number_stands_beside_the_printed_one() -> None:
    row = beside_published("NLL", 0.25, 0.282, "table 1")
    assert row == {"verdict": "NLL", "ours": 0.25, "published": 0.282, "place": "table 1"}


def test_printed_numbers_say_where_they_stand() -> None:
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")]
    beside = [row for report in reports for row in report["rows"] if "published" in row and "verdict" in row]
    assert beside and all(isinstance(row["ours"], float | int) and row["place"] for row in beside)
