from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.command import Setting, main
from studies.links import CALIBRATORS, LINKS, STUDY, pairs


def test_the_study_has_a_row_for_every_posterior_and_link_and_their_means(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    main(
        {"links": STUDY},
        [
            "--quick",
            "--seeds",
            "1",
            "--data",
            str(tmp_path),
            "--json",
            str(report),
            "--only",
            "wine 80, MLP, 20 epochs",
        ],
    )
    found = json.loads(report.read_text())["rows"]
    rows, means = ([row for row in found if bool(row.get("summary")) is told] for told in (False, True))
    expected = {(p, link) for p in ("KFAC", "last layer") for link in (*LINKS, "chosen, no temperature", "chosen")}
    alone = ["plain network", "temperature scaling", "temperature scaling without its penalty"]
    alone += CALIBRATORS if find_spec("probmetrics") else []
    expected |= {("none", name) for name in alone}
    assert {(row["posterior"], row["link"]) for row in means} == expected
    assert len(rows) == len(expected) and {row["seed"] for row in rows} == {0}
    for row in rows:
        if row["link"] == "chosen, no temperature":
            alike = [
                r
                for r in rows
                if r["link"] in ("probit", "pairwise", "qmc")
                and (r["seed"], r["posterior"]) == (row["seed"], row["posterior"])
            ]
            assert row["validation_nll"] == pytest.approx(min(r["validation_nll"] for r in alike), rel=1e-3)
            assert row["temperature"] == 1.0


def test_there_are_a_dozen_pairs_of_network_and_data() -> None:
    found = {name: seeds for name, seeds, _ in pairs(Setting(Path("data")))}
    assert len(found) >= 12 and sum(len(seeds) == 1 for seeds in found.values()) == 3
