"""The table, and how numbers are written in it."""

from __future__ import annotations

import math
import sys

import pytest
import torch

from lapwing.comparison import COLUMNS, Column, Comparison, Examples, Row, columns_with, pooled
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
    [
        (0.12345, "0.123"),
        (-0.5, "−0.500"),
        (-0.0001, "0.000"),
        (999_999.0, "999999.000"),
        (1e6, "1.0e+06"),
        (-2.5e12, "−2.5e+12"),
    ],
)
def test_numbers_are_written_by_their_format_until_they_are_too_long(value: float, text: str) -> None:
    assert Column("a", "a", "lower", ".3f", "").write(value) == text


def test_no_two_columns_share_a_name_or_a_label() -> None:
    assert len({column.name for column in COLUMNS}) == len({column.label for column in COLUMNS}) == len(COLUMNS)


def kept(nll: torch.Tensor, run: int = 0) -> Examples:
    return Examples.of(f"{run}", 7, {"nll": nll})


def compared(**changes: torch.Tensor) -> Comparison:
    """A reference with losses of 0 to 1 and methods that differ from it by example."""
    base = torch.linspace(0, 1, 50)
    rows = [Row("plain network", "", ({"nll": float(base.mean()), "predict_seconds": 0.1},), examples=(kept(base),))]
    for number, (name, change) in enumerate(changes.items()):
        nll = base + change
        numbers = {"nll": float(nll.mean()), "fit_seconds": 1.0 + number, "predict_seconds": 0.5}
        rows.append(Row(name, "default", (numbers,), examples=(kept(nll),)))
    rows.append(Row("failed", "", (), "RuntimeError: raw"))
    return Comparison(tuple(rows), reference=("plain network", ""))


WAVE = 0.2 * torch.linspace(0, 20, 50).sin()


def test_a_table_with_a_reference_is_sorted_and_marks_noise_and_ends_in_what_to_take() -> None:
    found = compared(worse=0.3 + WAVE, better=-0.2 + WAVE, near=-0.001 * WAVE, cheap=-0.21 + 2 * WAVE)
    lines = found.table().splitlines()
    assert [line.split("  ")[0] for line in lines[1:6]] == ["cheap", "better", "near", "plain network", "worse"]
    assert "†" in lines[3] and "†" not in lines[1] + lines[2] + lines[5]
    assert lines[4].split() == ["plain", "network", "–", "0.500", "0", "–", "0.10"]
    assert lines[6] == "† within two paired standard errors of plain network: noise"
    assert lines[7] == "failed, : RuntimeError: raw"
    assert lines[8].startswith("Take better by default: NLL 0.3") and "below plain network, in 2.5 s" in lines[8]
    assert lines[8].endswith("Within noise of the best, and slower: cheap by default.")
    assert [row.method for row in found.rows][1] == "worse"  # as it was


def test_what_is_too_noisy_to_be_told_from_the_reference_is_not_taken_however_quick() -> None:
    verdict = compared(noisy=torch.linspace(-3, 3, 50), sure=-0.2 + WAVE).verdict()
    assert verdict.startswith("Take sure by default") and "noisy" not in verdict


def test_where_nothing_is_better_the_reference_is_taken() -> None:
    found = compared(worse=0.3 + WAVE, near=-0.001 * WAVE.abs() * WAVE.sign())
    assert found.verdict().startswith("Take plain network: NLL 0.500, in 0.1 s, and nothing is better beyond noise.")
    assert Comparison(found.rows).verdict() == ""
    assert Comparison(found.rows[-1:], reference=("failed", "")).verdict() == ""


def test_json_has_differences_and_the_verdict() -> None:
    content = compared(better=-0.2 + WAVE).to_dict()
    assert content["reference"] == ["plain network", ""] and content["verdict"].startswith("Take better")
    difference = content["rows"][0]["nll"]["difference"]
    assert difference["value"] == pytest.approx(float((-0.2 + WAVE).mean()), rel=1e-4) and not difference["noise"]
    assert "difference" not in content["rows"][1]["nll"]


def test_markdown_has_the_cells_of_the_table() -> None:
    text = compared(better=-0.2 + WAVE, near=0.001 * WAVE).to_markdown()
    lines = text.splitlines()
    assert lines[0].startswith("| method | tuned by | NLL, nats ↓ | less the reference ↓ |")
    assert set(lines[1]) <= set("| -:") and lines[2].startswith("| better | default | ")
    assert len({line.count("|") for line in lines[:5]}) == 1
    assert text.endswith(".") and "Take better by default" in text


def test_a_frame_has_a_row_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared(better=-0.2 + WAVE)
    pandas = pytest.importorskip("pandas")
    frame = found.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["method"]) == ["better", "plain network", "failed"]
    assert frame["nll_difference"][0] == pytest.approx(float((-0.2 + WAVE).mean()), rel=1e-4)
    assert math.isnan(frame["nll"][2])


def test_without_pandas_a_frame_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="to_dict"):
        compared().to_frame()


def test_shifted_columns_stand_before_what_a_method_costs() -> None:
    names = [column.name for column in columns_with(["fog"])]
    assert names.index("joint") < names.index("nll:fog") < names.index("fit_seconds")
    assert len(set(names)) == len(names)


def test_rows_of_several_runs_keep_their_examples() -> None:
    first, second = compared(better=WAVE), compared(better=WAVE)
    assert len(pooled([first, second]).row("better", "default").examples) == 2
    assert pooled([first, second]).reference == first.reference


def test_a_method_that_failed_in_a_run_is_not_ranked_by_the_others() -> None:
    """The second run is the easy one for all; only the worse method has it alone."""
    plain = Row("plain network", "", ({"nll": 0.9}, {"nll": 0.3}))
    better = Row("better", "", ({"nll": 0.7}, {"nll": 0.2}))
    failed = Row("failed", "", ({"nll": 0.29},), "NumericalError: once")
    result = Comparison((plain, failed, better), reference=("plain network", ""))
    assert [row.method for row in result.ranked] == ["better", "plain network", "failed"]
    assert result.verdict().startswith("Take better")
    assert "not ranked, since they have fewer than 2 runs: failed 1" in result.table()


@pytest.mark.parametrize("nll", [math.inf, math.nan])
def test_an_nll_that_is_no_finite_number_is_neither_best_nor_noise(nll: float) -> None:
    kept = {name: (Examples("0", 7, {"nll": torch.tensor([value, 0.5])}),) for name, value in (("a", 0.6), ("b", nll))}
    plain = Row("plain network", "", ({"nll": 0.55, "predict_seconds": 2.0},), examples=kept["a"])
    odd = Row("odd", "", ({"nll": nll, "predict_seconds": 1.0},), examples=kept["b"])
    result = Comparison((odd, plain), reference=("plain network", ""))
    assert [row.method for row in result.ranked] == ["plain network", "odd"]
    assert result.verdict().startswith("Take plain network") and "odd" not in result.verdict()
