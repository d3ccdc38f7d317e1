"""The rows of a comparison as a report has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lapwing as lw
from benchmarks.report import Row
from lapwing import comparison
from lapwing.baselines import Task
from lapwing.evaluation.evaluate import Predictor
from studies.compared import compared

SOURCE = torch.Generator().manual_seed(0)
X = torch.randn(30, 2, generator=SOURCE, dtype=torch.float64)
Y = (X[:, 0] + torch.randn(30, generator=SOURCE, dtype=torch.float64) > 0).long()
TRAIN = X[:18], Y[:18]
TEST = X[18:], Y[18:]


def mistaken(task: Task) -> Predictor:
    raise RuntimeError("a mistake of its own")


METHODS = {"KFAC": lw.Laplace(lw.Categorical(), structure=lw.KFAC()), "mistaken": mistaken}


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(2, 2).double()


def test_a_row_has_numbers_and_a_difference_of_pairs_or_says_what_stopped_it(model: nn.Module) -> None:
    def facts(row: comparison.Row) -> Row:
        assert row.predictor is not None
        return {"labels": row.predictor.predict(TEST[0]).location.argmax(-1).tolist()}

    plain, kfac, stopped = compared(model, TRAIN, TEST, facts=facts, methods=METHODS)
    logits = model(TEST[0]).detach()
    losses = nn.functional.cross_entropy(logits, TEST[1], reduction="none")
    assert plain["nll"] == pytest.approx(float(losses.mean())) and plain["difference"] == 0.0
    assert plain["labels"] == logits.argmax(-1).tolist()
    assert kfac["method"] == "KFAC" and kfac["tuned_by"] == "default"
    assert kfac["difference"] == pytest.approx(kfac["nll"] - plain["nll"], abs=1e-6)
    assert kfac["difference_error"] > 0 and kfac["fit_seconds"] > 0
    assert stopped == {"method": "mistaken", "failure": "RuntimeError: a mistake of its own"}


def test_there_is_no_difference_from_a_reference_that_failed(model: nn.Module) -> None:
    plain, kfac, _ = compared(model, TRAIN, TEST, methods=METHODS, reference="mistaken")
    assert "nll" in plain and "difference" not in plain and "difference" not in kfac


def test_shifts_have_differences_too(model: nn.Module) -> None:
    shifted = {"noise": (TEST[0] + 1.0, TEST[1])}
    plain, kfac, _ = compared(model, TRAIN, TEST, methods=METHODS, shifts=shifted)
    assert plain["difference:noise"] == 0.0
    assert kfac["difference:noise"] == pytest.approx(kfac["nll:noise"] - plain["nll:noise"], abs=1e-6)


def test_finished_rows_are_found_again(model: nn.Module, tmp_path: Path) -> None:
    options: dict[str, Any] = {"methods": METHODS, "out": tmp_path / "rows.jsonl"}
    first = compared(model, TRAIN, TEST, seed=3, **options)
    again = compared(model, TRAIN, TEST, seed=3, **options)
    assert again[1] == pytest.approx(first[1]) and again[1]["fit_seconds"] == first[1]["fit_seconds"]
    other = compared(model, TRAIN, TEST, seed=4, **options)
    assert other[1]["fit_seconds"] != first[1]["fit_seconds"]
