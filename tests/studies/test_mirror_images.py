"""The study of mirror images, in a hurry."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.command import main
from studies.mirror_images import ONE_VIEW, STUDY


def test_a_method_is_scored_with_one_view_and_with_both(tmp_path: Path) -> None:
    path = tmp_path / "mirror.json"
    methods = ["diagonal", "diagonal" + ONE_VIEW]
    main({"mirror_images": STUDY}, ["--quick", "--only", "resnet20", *methods, "--json", str(path)])
    found = {row["method"]: row for row in json.loads(path.read_text())["rows"]}
    assert set(found) == {"plain network", "temperature scaling", *methods}
    assert found["diagonal"]["nll"] != found["diagonal" + ONE_VIEW]["nll"]
