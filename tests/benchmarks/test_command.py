from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.command import Setting, Study, joined, main, reported, tell
from studies.hessian_free.__main__ import STUDIES as HESSIAN_FREE

SCORED = {"networks": Study(lambda _: (), ("nll",), counts=("steps",)), "others": Study(lambda _: ())}
"""Studies of which one has means, and whole numbers that are measured."""


def part_of(tmp_path: Path, name: str, *rows: dict[str, Any]) -> Path:
    path = tmp_path / f"{name}.json"
    path.write_text(
        json.dumps({"commit": name, "command": f"run {name}", "machine": {"cores": len(name)}, "rows": rows})
    )
    return path


@pytest.mark.parametrize(("studies", "study"), [(HESSIAN_FREE, "intervals"), (SCORED, "networks")])
def test_parts_are_joined_and_their_means_taken_again(studies: Mapping[str, Study], study: str, tmp_path: Path) -> None:
    parts = [
        part_of(tmp_path, name, {"study": study, "seed": seed, "nll": nll}, {"nll": nll, "summary": True})
        for name, seed, nll in (("one", 0, 1.0), ("other", 1, 3.0))
    ]
    main(studies, [study, "--json", str(tmp_path / "all.json"), "--join", *map(str, parts)])
    first, second, mean = json.loads((tmp_path / "all.json").read_text())["rows"]
    source = {"commit": "one", "command": "run one", "machine": {"cores": 3}}
    assert first == {"source": source, "study": study, "seed": 0, "nll": 1.0}
    assert second["source"] == {"commit": "other", "command": "run other", "machine": {"cores": 5}}
    assert mean["summary"] and mean["nll"] == 2.0 and mean["nll_stderr"] == 1.0 and mean["seeds"] == 2


def test_parts_keep_their_methods_apart_and_count_steps(tmp_path: Path) -> None:
    head = {"study": "networks", "network": "n", "images": 5, "tuned_by": "evidence"}
    rows = [head | {"method": name, "seed": 0, "steps": steps} for name, steps in (("EM", 7), ("ELBO", None))]
    parts = [part_of(tmp_path, str(row["method"]), row | {"failure": ""}) for row in rows]
    main(SCORED, ["networks", "--json", str(tmp_path / "all.json"), "--join", *map(str, parts)])
    found = json.loads((tmp_path / "all.json").read_text())["rows"]
    assert [row["source"]["commit"] for row in found[:2]] == ["EM", "ELBO"]
    means = {row["method"]: row for row in found[2:]}
    assert means["EM"]["steps"] == 7.0 and "steps" not in means["ELBO"]


def test_what_a_study_makes_of_its_rows_is_not_joined_but_made_again(tmp_path: Path) -> None:
    rows = [{"study": "digits", "method": "GGN", "seed": 0, "nll": 0.3, "ood_auroc": 0.8}]
    rows += [rows[0] | {"method": "probed, 4 + 2", "nll": 0.4}, {"study": "digits", "verdict": "old", "within": True}]
    main(HESSIAN_FREE, ["digits", "--json", str(tmp_path / "all.json"), "--join", str(part_of(tmp_path, "p", *rows))])
    found = [row for row in json.loads((tmp_path / "all.json").read_text())["rows"] if "verdict" in row]
    assert [(row["verdict"], row["nll"], row["within"]) for row in found] == [
        ("probed, 4 + 2", pytest.approx(0.1), False)
    ]


def test_a_report_that_was_joined_keeps_where_its_rows_are_from(tmp_path: Path) -> None:
    part = part_of(tmp_path, "second", {"source": {"commit": "first"}, "nll": 1.0}, {"nll": 2.0})
    assert [row["source"]["commit"] for row in joined([part])] == ["first", "second"]


def test_nothing_to_join_is_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(SCORED, ["networks", "--json", "x.json", "--join"])
    assert "--join" in capsys.readouterr().err


def test_an_unknown_study_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(SCORED, ["nothing", "--json", "x.json"])
    assert "others" in capsys.readouterr().err


def test_a_device_is_refused_where_it_would_change_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(SCORED, ["networks", "--device", "cuda"])
    assert "networks measures the CPU: --device cuda would change nothing" in capsys.readouterr().err
    seen = list[str]()
    anywhere = Study(lambda setting: seen.append(setting.device) or (), devices=True)  # type: ignore[func-returns-value]
    main({"anywhere": anywhere}, ["--device", "meta"])
    assert seen == ["meta"]


def counting(setting: Setting) -> Any:
    """A row for every seed."""
    return [{"seed": seed, "steps": setting.more["start"] + seed, "name": "a"} for seed in setting.repeats]


STUDY = Study(counting, ("steps",), ("steps",), needs="numbers", options={"start": (4, "the first number")})


def test_a_run_shows_its_rows_and_ends_with_their_means(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(reported("s", STUDY, Setting(seeds=2, more={"start": 4})))
    assert capsys.readouterr().out == "seed 0, steps 4, name a\nseed 1, steps 5, name a\n"
    assert [row["steps"] for row in found] == [4, 5, 4.5] and found[-1]["summary"]
    assert all(row["study"] == "s" for row in found)


def test_options_reach_the_study(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    main({"s": STUDY}, ["--data", "d", "--rounds", "1", "--start", "7", "--json", str(path)])
    assert json.loads(path.read_text())["rows"][0] == {"study": "s", "seed": 0, "steps": 7, "name": "a"}


def test_an_option_may_have_another_default_in_a_hurry() -> None:
    study = Study(counting, options={"start": (4, "the first number", 1), "step": (2, "to the next")})
    assert study.more({}, quick=False) == {"start": 4, "step": 2}
    assert study.more({"start": None, "seeds": 3}, quick=True) == {"start": 1, "step": 2}
    assert study.more({"start": 4, "step": 0}, quick=True) == {"start": 4, "step": 0}


def test_what_cannot_be_generated_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main({"s": STUDY}, [])
    assert "--data is needed, with numbers" in capsys.readouterr().err
    main({"s": STUDY}, ["--quick"])
    with pytest.raises(SystemExit, match="--data DIR"):
        _ = Setting().folder


def test_what_was_asked_for_is_taken_and_else_the_default_or_all() -> None:
    setting = Setting(only=("b", "elsewhere"))
    assert setting.among(("a", "b")) == ("b",) and setting.among(("c", "d")) == ("c", "d")
    assert setting.among(("c", "d"), ("d",)) == ("d",)


def test_each_part_has_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    means = [{"part": part, "nll": nll, "summary": True} for part, nll in (("a", 1.0), ("b", 2.0), ("a", 3.0))]
    tell([{"part": "a", "nll": 9.0}, *means, {"verdict": "holds"}], ("nll",))
    assert capsys.readouterr().out == '\na\nnll\n  1\n  3\n\nb\nnll\n  2\n{"verdict": "holds"}\n'
