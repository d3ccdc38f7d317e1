"""The page on baselines runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import lapwing as lw
from tests.integrations.pages import DOCS, run_page


@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")
def test_the_page_runs(tmp_path: Path) -> None:
    names = run_page("baselines", tmp_path, DOCS)
    told = lw.evaluate(names["distance"], names["test"], ood=names["elsewhere"])
    assert told["ood_auroc"] > 0.9
    assert names["sets"].coverage(names["test"]).share > 0.75


def test_every_baseline_is_in_its_table() -> None:
    text = (DOCS / "baselines.md").read_text(encoding="utf-8")
    entries = [name for name, kind in vars(lw.baselines).items() if hasattr(kind, "fit") and isinstance(kind, type)]
    assert len(entries) > 10
    for name in entries:
        assert name in ("Entry", "Temperature") or f"| `{name}(" in text, name
