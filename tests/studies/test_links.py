from __future__ import annotations

import json
from pathlib import Path

from benchmarks.command import Setting, main
from studies.links import LINKS, STUDY, pairs


def test_the_study_has_a_row_for_every_posterior_and_link_and_their_means(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    main(
        {"links": STUDY},
        ["--quick", "--data", str(tmp_path), "--json", str(report), "--only", "wine 80, MLP, 20 epochs"],
    )
    found = json.loads(report.read_text())["rows"]
    rows, means = ([row for row in found if bool(row.get("summary")) is told] for told in (False, True))
    expected = {(p, link) for p in ("KFAC", "last layer") for link in (*LINKS, "chosen")}
    expected |= {("none", "plain network"), ("none", "temperature scaling")}
    assert {(row["posterior"], row["link"]) for row in means} == expected
    assert len(rows) == 2 * len(expected) and {row["seed"] for row in rows} == {0, 1}
    for row in rows:
        if row["link"] == "chosen":
            alike = [
                r
                for r in rows
                if r["link"] == row["was"][0] and (r["seed"], r["posterior"]) == (row["seed"], row["posterior"])
            ]
            assert row["nll"] == alike[0]["nll"] and row["link"] != "mc"


def test_there_are_a_dozen_pairs_of_network_and_data() -> None:
    found = {name: seeds for name, seeds, _ in pairs(Setting(Path("data")))}
    assert len(found) >= 12 and sum(len(seeds) == 1 for seeds in found.values()) == 3
