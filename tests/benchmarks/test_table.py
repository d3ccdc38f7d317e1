from __future__ import annotations

import math

import pytest

from benchmarks.table import summarised, table

ROWS = [
    {"study": "s", "method": "a", "size": 3, "seed": 0, "nll": 1.0, "steps": 4, "trace": [1]},
    {"study": "s", "method": "a", "size": 3, "seed": 1, "nll": 3.0, "steps": 6, "trace": [2]},
    {"study": "s", "method": "b", "size": 3, "seed": 0, "nll": 2.0, "steps": 1},
    {"study": "s", "method": "b", "size": 3, "seed": 1, "failure": "ValueError: no"},
]


def test_seeds_of_a_case_become_their_mean_and_standard_error() -> None:
    first, second = summarised(ROWS, ("steps",))
    assert first == {
        "study": "s", "method": "a", "size": 3, "seeds": 2, "summary": True,
        "nll": 2.0, "steps": 5.0, "nll_stderr": 1.0, "steps_stderr": 1.0,
    }  # fmt: skip
    assert second["seeds"] == 1 and second["failures"] == 1 and second["failure"] == "ValueError: no"
    assert second["nll"] == 2.0 and "nll_stderr" not in second


def test_whole_numbers_name_the_case_unless_they_are_counts() -> None:
    assert len(list(summarised(ROWS[:2]))) == 2


def test_the_error_is_that_of_the_mean() -> None:
    rows = [{"nll": value, "seed": seed} for seed, value in enumerate((1.0, 2.0, 6.0, 7.0))]
    (row,) = summarised(rows)
    assert row["nll"] == 4.0 and row["nll_stderr"] == pytest.approx(math.sqrt((9 + 4 + 4 + 9) / 3 / 4))


def test_a_table_shows_what_differs() -> None:
    text = table(list(summarised(ROWS, ("steps",))), ("nll", "steps", "ece"))
    assert text.splitlines() == [
        "method    nll  steps",
        "a       2 ± 1  5 ± 1",
        "b           2      1",
        "b: ValueError: no",
    ]
