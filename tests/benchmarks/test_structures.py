"""What both sides did becomes rows that hide nothing: the best of the peer's ways, and every way tried."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.measure import Step
from benchmarks.problems import load, prepare
from benchmarks.structures import best, outcome

GOOD = Step("predict", 2.0, 100.0, "@64")
NO_MEMORY = Step("predict", None, None, "@256", "no memory")


def test_the_way_that_worked_counts_and_the_one_that_did_not_is_noted() -> None:
    found = outcome([Step("fit", 1.0, 1.0), NO_MEMORY, GOOD], "predict")
    assert (found.seconds, found.label, found.note) == (2.0, "@64", "predict@256: no memory")


def test_a_step_that_was_never_reached_names_the_one_that_failed() -> None:
    fit = Step("fit", None, None, "@128", "not implemented")
    assert outcome([fit], "tune") == Step("tune", None, None, note="fit@128: not implemented")


def test_the_best_way_is_found_for_each_quantity() -> None:
    theirs = {"a": GOOD, "b": Step("predict", 4.0, 50.0), "c": NO_MEMORY}
    seconds, memory = best("net/kfac/predict", Step("predict", 1.0, 10.0), theirs)
    assert (seconds["quantity"], seconds["peer"], seconds["ratio"]) == ("seconds", 2.0, 0.5)
    assert (memory["quantity"], memory["peer"], memory["ratio"]) == ("peak_mib", 50.0, 0.2)
    assert seconds["peer_name"].endswith("a @64") and memory["peer_name"].endswith("b")


def test_without_any_way_that_worked_there_is_no_ratio_and_a_reason() -> None:
    rows = best("net/full/fit", Step("fit", 1.0, 1.0), {"a": NO_MEMORY})
    assert [row["ratio"] for row in rows] == [None, None]
    assert all("every backend failed" in row["note"] for row in rows)


def test_both_sides_read_the_network_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "problem.safetensors"
    prepare("lenet", None, path, train=1000, fitted=500)
    model, data = load("lenet", str(path))
    assert not model.training and all(p.grad is None for p in model.parameters())
    assert (len(data.x_train), len(data.x_test)) == (500, 256)
    with torch.no_grad():
        accuracy = (model(data.x_test).argmax(1) == data.y_test).double().mean().item()
    assert accuracy > 0.6
