"""What the demo makes of numbers: paired answers, told whichever way they go."""

from __future__ import annotations

import pytest

from lapwing.comparison import Comparison, Row
from lapwing.demo.questions import QUESTIONS, answers, paired, table

SECONDS = {"fit_seconds": 1.0, "tune_seconds": 2.0, "predict_seconds": 0.5}


def runs(nll: tuple[float, ...], **more: float) -> tuple[dict[str, float], ...]:
    others = {"nll:rotated": 1.0, "joint": -0.5, "ood_auroc": 0.8, "augrc": 0.01, "predict_seconds": 0.25}
    return tuple({"nll": value} | others | more for value in nll)


def digits(scaled: tuple[float, ...], plain: tuple[float, ...] = (0.5, 0.7)) -> Comparison:
    count = len(plain)
    return Comparison(
        (
            Row("plain network", "", runs(plain)),
            Row("temperature scaling", "validation", runs(scaled)),
            Row("KFAC", "default", runs((0.4, 0.5)[:count], ood_auroc=0.9, joint=-0.6, **SECONDS)),
            Row("KFAC", "validation", runs((0.1, 0.1)[:count])),
        )
    )


def curve(seeds: int = 2) -> Comparison:
    losses = {("plain network", ""): 3.0, ("plain network", "validation"): 2.0, ("full", "default"): 1.0}
    rows = [Row(method, by, ({"nll:gap": loss},) * seeds) for (method, by), loss in losses.items()]
    return Comparison(tuple(rows))


def test_differences_are_paired_by_seed() -> None:
    difference = paired((0.4, 0.5), (0.5, 0.7))  # −0.1 and −0.2
    assert difference.value == pytest.approx(-0.15) and difference.stderr == pytest.approx(0.05)
    assert paired((0.4, 0.5), (0.5, 0.6)).stderr == pytest.approx(0.0, abs=1e-12)


def test_each_question_has_an_answer_against_both_and_says_which_way_it_goes() -> None:
    found = answers(digits((0.4, 0.52)), curve())
    assert [answer.question for answer in found] == [each for each in QUESTIONS for _ in range(2)]
    told = [answer.verdict for answer in found]
    better, worse, even = "better", "worse", "even"
    assert told == [better, even, even, even, worse, worse, better, better, even, even, better, better, worse, worse]
    first, *_, last = found
    assert first.value == pytest.approx(0.45) and first.difference == pytest.approx(-0.15)
    assert last.difference == pytest.approx(3.25)  # seconds of three steps, less those of a prediction
    assert first.to_dict()["holds"] and not last.to_dict()["holds"]
    assert "0.450 NLL, nats (lower is better), against the plain network" in first.to_dict()["claim"]


@pytest.mark.parametrize(("scaled", "verdict"), [((0.38, 0.5), "even"), ((0.38, 0.48), "worse")])
def test_two_standard_errors_decide(scaled: tuple[float, ...], verdict: str) -> None:
    assert answers(digits(scaled), curve())[1].verdict == verdict  # 0.01 ± 0.01, and 0.02 ± 0.00


def test_a_temperature_that_failed_in_a_seed_is_not_compared() -> None:
    found = answers(digits((0.4,)), curve())
    assert not any("temperature" in answer.against for answer in found)
    (line,) = [line for line in table(found, 2).splitlines() if line.startswith("new digits")]
    assert line.endswith("–")


def test_the_table_fits_a_terminal_and_says_units_and_which_way_is_better() -> None:
    lines = table(answers(digits((0.4, 0.52)), curve()), 2).splitlines()
    assert max(map(len, lines)) <= 120
    (line,) = [line for line in lines if line.startswith("new digits")]
    assert "NLL, nats ↓" in line and "−0.150 ± 0.050  better" in line and line.endswith("even")


def test_one_seed_has_no_standard_error() -> None:
    found = table(answers(digits((0.4,), (0.5,)), curve(1)), 1)
    assert "without a standard error" in found and "−0.1  better" in found and "±" not in found
