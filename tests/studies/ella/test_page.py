from __future__ import annotations

import json
from pathlib import Path

from studies.ella.__main__ import STUDIES
from studies.ella.page import SECTIONS, main


def test_the_page_has_every_study_and_the_tables_of_reports_that_are_there(tmp_path: Path) -> None:
    rows = [
        {"study": "rank", "part": "cnn", "rank": 5, "seeds": 3, "summary": True, "nll": 0.25, "nll_stderr": 0.0123},
        {"study": "rank", "part": "cnn", "rank": 5, "seed": 0, "nll": 7.0},
    ]
    (tmp_path / "ella-rank.json").write_text(json.dumps({"commit": "c", "machine": {}, "rows": rows}))
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "ella-rank.png").touch()
    main(["--reports", str(tmp_path), "--markdown", str(tmp_path / "page.md")])
    text = (tmp_path / "page.md").read_text()
    assert "`python -m studies.ella rank --json FILE" in text and "### cnn" in text
    assert "| rank | NLL | seeds |\n|---|---:|---:|\n| 5 | 0.25 ± 0.012 | 3 |" in text
    assert "7" not in text.split("seeds |", 1)[1].split("## ", 1)[0] and text.count("| rank |") == 1
    assert all(f"## {section.title}" in text for section in SECTIONS.values())
    assert "![Rank](figures/ella-rank.png)" in text and text.count("![") == 1


def test_every_study_has_its_section() -> None:
    assert set(SECTIONS) == set(STUDIES)
