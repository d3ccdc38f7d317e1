"""Every method on one network: what there is to compare, and that it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lapwing as lw
from lapwing.comparison import Task
from studies.side_by_side import STOPPED, main, of_digits, on_mirrored


def test_there_are_at_least_fourteen_methods_and_seven_baselines_two_shifts_and_what_is_stopped() -> None:
    task = of_digits(quick=True)
    baselines = [name for name, method in task["methods"].items() if type(method).__module__.startswith("lapwing.base")]
    assert len(task["methods"]) - len(STOPPED) >= 14 and len(baselines) >= 7
    assert len(task["shifts"]) == 2 and {"validation", "ood"} <= set(task)


@pytest.mark.no_cover
def test_a_run_goes_on_and_writes_a_page_of_all_seeds(tmp_path: Path) -> None:
    command = ["digits", "--quick", "--out", str(tmp_path), "--seconds", "20", "--draws", "4"]
    names = ["vector scaling", "dropout", "raises an error"]
    main([*command, "--only", *names])
    before = (tmp_path / "run.jsonl").read_text()
    assert len(before.splitlines()) == 5
    main([*command, "--seeds", "2", "--only", *names])
    assert (tmp_path / "run.jsonl").read_text().startswith(before)
    rows = {row["method"]: row for row in json.loads((tmp_path / "results.json").read_text())["rows"]}
    assert set(rows) == {"plain network", "temperature scaling", *names}
    assert len(rows["dropout"]["nll"]["runs"]) == 2
    assert "difference" in rows["dropout"]["nll:fog 5"] and "difference" in rows["dropout"]["joint"]
    assert rows["raises an error"]["note"] == "RuntimeError: a mistake of the method's own"
    assert (tmp_path / "report.html").is_file()


def test_methods_on_mirror_images_say_the_same_of_both() -> None:
    task = of_digits(quick=True)
    given = Task(task["model"], task["train"], task["validation"])
    x = task["test"][0]
    methods = on_mirrored(lw.Categorical())
    for name in ("temperature scaling, mirror images", "KFAC, mirror images"):
        predictor: Any = methods[name].fit(given)
        torch.testing.assert_close(predictor.predict(x).probs, predictor.predict(x.flip(-1)).probs)
