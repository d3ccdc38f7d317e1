"""The table, and how numbers are written in it."""

from __future__ import annotations

import math

import pytest

from lapwing.comparison import COLUMNS, Column, Comparison, Row, pooled
from lapwing.ground.errors import ConfigError


def one(nll: float, **more: float) -> Comparison:
    plain = Row("plain network", "", ({"nll": 0.5, "accuracy": 0.9},))
    return Comparison((plain, Row("KFAC", "default", ({"nll": nll, **more},))))


def test_estimate_is_mean_and_standard_error() -> None:
    estimate = pooled([one(1.0), one(2.0), one(6.0)]).row("KFAC", "default").estimate("nll")
    assert estimate is not None
    assert estimate.value == pytest.approx(3.0)
    assert estimate.stderr == pytest.approx(math.sqrt(7.0 / 3))  # s² = (4 + 1 + 9) / 2
    assert estimate.samples == 3


def test_one_run_has_no_standard_error() -> None:
    estimate = one(1.0).row("KFAC", "default").estimate("nll")
    assert estimate is not None
    assert math.isnan(estimate.stderr)
    assert one(1.0).row("KFAC", "default").estimate("accuracy") is None


def test_pooling_in_steps_is_pooling_at_once() -> None:
    runs = [one(1.0), one(2.0), one(6.0)]
    assert pooled([pooled(runs[:2]), runs[2]]) == pooled(runs)


def test_pooling_keeps_the_first_note_and_the_runs_that_were() -> None:
    failed = Comparison((one(1.0).rows[0], Row("KFAC", "default", (), "too large")))
    row = pooled([one(1.0), failed]).row("KFAC", "default")
    assert (row.values("nll"), row.note) == ((1.0,), "too large")


@pytest.mark.parametrize("runs", [[], [one(1.0), Comparison(one(1.0).rows[:1])]])
def test_pooling_other_rows_is_refused(runs: list[Comparison]) -> None:
    with pytest.raises(ConfigError, match="same methods"):
        pooled(runs)


def test_a_row_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"Got \('KFAC', ''\). Try .*\('KFAC', 'default'\)"):
        one(1.0).row("KFAC")


def test_table_shows_columns_in_order_spreads_and_notes() -> None:
    failed = Row("full", "default", (), "Expected less. Got more. Try KFAC.")
    runs = pooled([one(1.0, peak_mib=10.0), one(2.0, peak_mib=11.0)])
    lines = Comparison((*runs.rows, failed)).table().splitlines()
    assert lines[0].split("  ")[0] == "method"
    assert lines[0].index("accuracy") < lines[0].index("NLL") < lines[0].index("peak MiB")
    assert "1.500 ± 0.500" in lines[2]
    assert lines[2].endswith(" 10")  # half to even, and no spread for memory
    assert lines[4] == "full, default: Expected less. Got more. Try KFAC."


def test_rows_of_equal_scores_are_one_line_and_the_first_line_says_to_which_tuning_added_nothing() -> None:
    costs = ({"fit_seconds": 0.5, "prior_precision": 1e12}, {"fit_seconds": 2.0, "prior_precision": 1e12})
    plain = Row("plain network", "", ({"nll": 0.5},))
    same = [
        Row(name, "default", ({"nll": 0.5, **cost},), certain=True)
        for name, cost in zip(("KFAC", "full"), costs, strict=True)
    ]
    other = Row("diagonal", "default", ({"nll": 0.4, "fit_seconds": 1.0},))
    lines = Comparison((plain, *same, other)).table().splitlines()
    assert lines[0] == (
        "KFAC, full by default: probabilities are the network's own; error bars are at a prior precision of their own"
    )
    assert lines[2].split("  ")[0] == "plain network, KFAC, full"
    assert "0.500" in lines[2] and "1.0e+12" in lines[2] and lines[2].endswith("0.50 to 2.00")
    assert lines[3].startswith("diagonal") and len(lines) == 4


def test_pooled_rows_add_nothing_where_no_run_does() -> None:
    runs = [Comparison((Row("KFAC", "default", ({"nll": 0.5},), certain=certain),)) for certain in (True, False)]
    assert pooled([runs[0], runs[0]]).rows[0].certain
    assert not pooled(runs).rows[0].certain


def test_columns_that_are_not_tabled_stay_in_the_json() -> None:
    comparison = one(1.0, adaptive_ece=0.125)
    assert "adaptive" not in comparison.table()
    assert comparison.to_dict()["rows"][1]["adaptive_ece"]["mean"] == 0.125


def test_json_has_every_run_and_null_for_what_is_not_there() -> None:
    content = pooled([one(1.0), one(3.0)]).to_dict()
    assert [column["name"] for column in content["columns"]] == ["accuracy", "nll"]
    assert content["rows"][1] == {
        "method": "KFAC",
        "tuned_by": "default",
        "note": "",
        "certain": False,
        "accuracy": None,
        "nll": {"mean": 2.0, "stderr": 1.0, "runs": [1.0, 3.0]},
    }
    assert one(1.0).to_dict()["rows"][1]["nll"] == {"mean": 1.0, "stderr": None, "runs": [1.0]}


def test_json_has_no_nan() -> None:
    assert one(math.inf).to_dict()["rows"][1]["nll"]["mean"] is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12345, "0.123"), (-0.5, "−0.500"), (999_999.0, "999999.000"), (1e6, "1.0e+06"), (-2.5e12, "−2.5e+12")],
)
def test_numbers_are_written_by_their_format_until_they_are_too_long(value: float, text: str) -> None:
    assert Column("a", "a", "lower", ".3f", "").write(value) == text


def test_no_two_columns_share_a_name_or_a_label() -> None:
    assert len({column.name for column in COLUMNS}) == len({column.label for column in COLUMNS}) == len(COLUMNS)
