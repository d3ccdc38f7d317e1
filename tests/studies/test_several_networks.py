from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.command import main
from studies.several_networks import CLASSES, KINDS, PAGE, REFERENCE, STUDY, entries, page, passes


@pytest.mark.no_cover
def test_the_study_has_a_row_for_every_method_and_seed(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    main({"several_networks": STUDY}, ["--quick", "--seeds", "1", "--json", str(report)])
    rows = [row for row in json.loads(report.read_text())["rows"] if "seed" in row]
    assert [row["method"] for row in rows] == ["plain network", "temperature scaling", *entries([nn.Linear(2, 2)])]
    assert not any("failure" in row for row in rows)
    reference = next(row for row in rows if row["method"] == REFERENCE)
    for row in rows:
        assert row["difference"] == pytest.approx(row["nll"] - reference["nll"], abs=1e-6)


def test_a_network_is_that_of_its_seed_whatever_was_drawn_before() -> None:
    kind = KINDS["digits 300, MLP"]
    pair = torch.randn(40, 64), torch.arange(40) % CLASSES
    one = kind.trained(pair, 2, 0)
    torch.rand(3)
    again, other = kind.trained(pair, 2, 0), kind.trained(pair, 2, 1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_costs_are_passes_over_the_training_images() -> None:
    assert passes("5 networks", 50) == (4 * 3 * 50, 5)
    assert passes("plain network", 50) == (0, 1)


def test_the_page_shows_what_is_committed() -> None:
    report = PAGE.parents[1] / "benchmarks" / "results" / "several-networks.json"
    rows = json.loads(report.read_text(encoding="utf-8"))["rows"]
    assert page(rows) == PAGE.read_text(encoding="utf-8")
