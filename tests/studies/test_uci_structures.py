"""The study of structures on UCI sets, in a hurry."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.command import main
from studies import uci_structures


def test_every_structure_is_scored_beside_the_network_itself(tmp_path: Path) -> None:
    path = tmp_path / "structures.json"
    options = ["--quick", "--seeds", "1", "--only", "yacht", "--json", str(path)]
    main({"uci_structures": uci_structures.STUDY}, options)
    found = [row for row in json.loads(path.read_text())["rows"] if not row.get("summary")]
    methods = [uci_structures.PLAIN, *uci_structures.RECIPES]
    assert [row["method"] for row in found] == 2 * methods
    assert {row["network"] for row in found} == set(uci_structures.DECAYS)
    assert all(row["nll"] < 10.0 and 0.0 <= row["picp"] <= 1.0 for row in found)
