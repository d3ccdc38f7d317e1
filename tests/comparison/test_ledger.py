"""Which rows of a file are those of an entry."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lapwing as lw
from lapwing.comparison.cost import Limits
from lapwing.comparison.examples import Examples
from lapwing.comparison.journal import Journal
from lapwing.comparison.ledger import Ledger, row_of, rows_of
from lapwing.comparison.table import Row
from lapwing.ground.errors import DataError

ROW = Row("mine", "", ({"nll": 0.5, "ece": float("nan")},), examples=(Examples("0", 7, {"nll": torch.ones(3)}),))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "run.jsonl")


def test_a_row_comes_back_for_the_same_entry_data_and_seed_alone(journal: Journal) -> None:
    entry = lw.Laplace(lw.Categorical())
    ledger = Ledger(journal, "data", 0)
    ledger.kept(ROW, entry)
    found = ledger.row("mine", "", entry)
    assert (
        found is not None
        and found.runs == ({"nll": 0.5},)
        and torch.equal(found.examples[0].values["nll"], torch.ones(3))
    )
    assert ledger.row("mine", "", lw.Laplace(lw.Categorical(), structure=lw.KFAC())) is None
    assert ledger.row("mine", "default", entry) is None and ledger.row("other", "", entry) is None
    assert Ledger(journal, "others", 0).row("mine", "", entry) is None
    assert Ledger(journal, "data", 1).row("mine", "", entry) is None
    assert Ledger().kept(ROW, entry) is ROW and Ledger().row("mine", "", entry) is None


@pytest.mark.parametrize(
    ("limits", "again"),
    [
        (Limits(10.0, 100), False),
        (Limits(5.0, 50), False),
        (Limits(20.0, 100), True),
        (Limits(10.0, 200), True),
        (Limits(None, 100), True),
    ],
)
def test_what_was_stopped_is_tried_again_where_it_may_take_more(journal: Journal, limits: Limits, again: bool) -> None:
    Ledger(journal, "data", 0, Limits(10.0, 100)).kept(Row("mine", "", (), "too slow"), "entry")
    found = Ledger(journal, "data", 0, limits).row("mine", "", "entry")
    assert (found is None) == again


def test_the_latest_of_a_key_counts(journal: Journal) -> None:
    ledger = Ledger(journal, "data", 0)
    ledger.kept(Row("mine", "", (), "failed"), "entry")
    ledger.kept(ROW, "entry")
    assert [row.note for row in rows_of(journal.read(), "here")] == [""]
    found = ledger.row("mine", "", "entry")
    assert found is not None and found.runs


@pytest.mark.parametrize("line", [{}, {"key": 3}, {"key": {"method": "m", "tuned_by": ""}, "numbers": {"nll": "few"}}])
def test_lines_of_something_else_are_refused(line: dict[str, object]) -> None:
    with pytest.raises(DataError, match="a row that compare wrote"):
        row_of(line, "here")
