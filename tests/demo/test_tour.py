from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lapwing.comparison import Comparison, Row
from lapwing.demo import text, tour
from lapwing.demo.questions import QUESTIONS
from lapwing.demo.tour import Demo, run
from lapwing.ground.errors import ConfigError
from lapwing.posteriors import Posterior

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return run(tmp_path_factory.mktemp("demo"), seeds=1, quick=True)


def test_every_method_has_a_row_with_all_numbers(demo: Demo) -> None:
    results = json.loads(demo.results.read_text(encoding="utf-8"))
    ways = ("default", "evidence at the weights", "validation")
    tuned = [(name, how) for name in ("last layer", "diagonal", "KFAC") for how in ways]
    names = [(row["method"], row["tuned_by"]) for row in results["rows"]]
    assert names == [("plain network", ""), ("temperature scaling", "validation"), *tuned]
    scores = ("accuracy", "nll", "ece", "brier", "ood_auroc", "nll:rotated", "joint", "augrc", "predict_seconds")
    for row in results["rows"][:1] + results["rows"][2:]:
        assert all(len(row[name]["runs"]) == 1 for name in scores), row
    criteria = dict(zip(ways, ("validation_nll", "evidence", "validation_nll"), strict=True))
    for row in results["rows"][2:]:
        assert all(len(row[name]["runs"]) == 1 for name in ("fit_seconds", "tune_seconds")), row
        assert [name for name in dict.fromkeys(criteria.values()) if row[name]] == [criteria[row["tuned_by"]]], row


@pytest.mark.parametrize("other", ["default", "validation"])
def test_evidence_is_larger_where_it_was_what_was_tuned(demo: Demo, other: str) -> None:
    for name in ("last layer", "diagonal", "KFAC"):
        classical, not_it = (demo.digits.row(name, how).predictor for how in ("evidence at the weights", other))
        assert isinstance(classical, Posterior) and isinstance(not_it, Posterior)
        assert classical.log_marginal() > not_it.log_marginal()


def test_the_second_section_is_the_curve(demo: Demo) -> None:
    (section,) = json.loads(demo.results.read_text(encoding="utf-8"))["sections"]
    assert [column["name"] for column in section["columns"]][:4] == ["rmse", "nll", "crps", "picp"]
    full, plain = (demo.gap.row(*row).values("ood_auroc")[0] for row in (("full", "default"), ("plain network", "")))
    assert full > 0.9 > plain == 0.5  # only the posterior knows where the gap is


def test_page_and_figures_are_written(demo: Demo) -> None:
    page = demo.report.read_text(encoding="utf-8")
    figures = sorted(path.stem for path in (demo.results.parent / "figures").iterdir())
    assert figures == ["bands", "choice", "confidence", "evidence", "rejection", "reliability", "scores"]
    assert page.count("data:image/svg+xml;base64,") == len(figures)
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)


def test_answers_to_all_questions_are_in_the_results(demo: Demo) -> None:
    found = json.loads(demo.results.read_text(encoding="utf-8"))["findings"]
    assert found == [answer.to_dict() for answer in demo.answers] and len(found) == 2 * len(QUESTIONS)


def test_its_tables_fit_a_terminal(demo: Demo) -> None:
    lines = "\n".join(text.in_terminal(demo.digits, demo.gap)).splitlines()
    assert max(map(len, lines)) <= text.WIDTH
    assert {"NLL, nats ↓", "OOD AUROC ↑", "NLL gap, nats ↓"} <= {
        heading for line in lines for heading in re.split(r"  +", line)
    }


def test_seeds_are_pooled_and_what_was_done_before_an_interrupt_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compared(seed: int, *_: object) -> Comparison:
        if seed == 2:
            raise KeyboardInterrupt
        numbers = {"nll": 0.5, "ece": 0.1, "ood_auroc": 0.8}
        kfac = Row("KFAC", "default", (numbers | {"fit_seconds": 9.0 + seed},))
        return Comparison(
            (Row("plain network", "", (numbers,)), Row("temperature scaling", "validation", (numbers,)), kfac)
        )

    monkeypatch.setattr(tour, "compare_digits", compared)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, seeds=3, quick=True)
    rows = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["rows"]
    assert rows[2]["fit_seconds"]["runs"] == [9.0, 10.0]


def test_no_seeds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one seed"):
        run(tmp_path, seeds=0)
