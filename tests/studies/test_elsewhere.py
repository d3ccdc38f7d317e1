from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.command import Setting, main
from lapwing.metrics import auroc
from studies.elsewhere import STUDY, cases, gain, is_worse
from tests.posterior_cases import normal


@pytest.mark.no_cover
def test_the_study_has_a_row_for_every_score_and_judges_them(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    name = "digits without 7, 8, 9, MLP"
    main({"elsewhere": STUDY}, ["--quick", "--json", str(report), "--only", name])
    rows = json.loads(report.read_text())["rows"]
    found = {(row["posterior"], row["score"]): row for row in rows if "network" in row}
    assert set(found) >= {("none", "plain entropy"), ("none", "energy"), ("KFAC", "entropy"), ("KFAC", "epistemic")}
    plain = found["none", "plain entropy"]
    ours = found["KFAC", "epistemic"]
    for kind in ("unseen", "noise", "shift", "errors"):
        assert ours[f"{kind}_gain"] == pytest.approx(ours[kind] - plain[kind])
        assert plain[f"{kind}_gain"] == 0.0 and plain[f"{kind}_gain_stderr"] == 0.0
    (last,) = [row for row in rows if row.get("score") == "epistemic of each network"]
    assert last["networks"] == 1 and last["worse"] == ([name] if is_worse(ours) else [])


def test_a_gain_has_the_error_of_the_difference() -> None:
    """Of one score and itself none; of independent scores that of both."""
    ours = (normal(200), 1 + normal(100, seed=1))
    theirs = (normal(200, seed=2), 0.5 + normal(100, seed=3))
    found = gain("unseen", ours, theirs)
    assert found["unseen_gain"] == pytest.approx(auroc(*ours) - auroc(*theirs))
    order = torch.Generator().manual_seed(0)
    again = list[float]()
    for _ in range(400):
        some = torch.randint(200, (200,), generator=order)
        others = torch.randint(100, (100,), generator=order)
        pairs = [auroc(familiar[some], foreign[others]) for familiar, foreign in (ours, theirs)]
        again.append(pairs[0] - pairs[1])
    assert found["unseen_gain_stderr"] == pytest.approx(float(torch.tensor(again).std()), rel=0.15)
    assert gain("unseen", ours, ours)["unseen_gain_stderr"] == 0.0


def test_networks_that_choose_are_not_those_that_test() -> None:
    names: dict[str, set[str]] = {"chooses": set(), "tests": set()}
    for part, name, _ in cases(Setting(Path("data"))):
        names[part].add(name)
    assert len(names["tests"]) >= 10 and not names["tests"] & names["chooses"]
