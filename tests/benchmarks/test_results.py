"""What is committed in benchmarks/results can be made again: a commit without changes beside it, and a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def sources(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Where the numbers of a report are from: its own commit, or those of the reports it was joined from."""
    joined = [row["source"] for row in report["rows"] if "source" in row and "published" not in row]
    return [report, *joined]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_committed_result_says_how_it_was_made(path: Path) -> None:
    for source in sources(json.loads(path.read_text(encoding="utf-8"))):
        assert len(source["commit"]) == 40 and set(source["commit"]) <= set("0123456789abcdef")
        assert source["command"].startswith(("python -m benchmarks.", "python -m studies.", "python -m lapwing"))
