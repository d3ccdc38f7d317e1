"""The demo of tomography from end to end, very small: what it promises is there."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest

from lapwing.cli import ct, main
from lapwing.cli.demonstration import QUICK, demonstrate
from lapwing.ground.errors import ConvergenceWarning


def test_the_demo_leaves_its_numbers_a_picture_and_a_page(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # thirty steps are no fit
        found = demonstrate(tmp_path / "ct", size=QUICK)
    written = json.loads((tmp_path / "ct" / "results.json").read_text())
    assert written["psnr"] == found["psnr"] and set(written["psnr"]) == {"fbp", "tv", "dip"}
    assert 0 <= written["coverage"] <= 1 and math.isfinite(written["marginal_log_likelihood"])
    assert math.isfinite(written["patch_log_likelihood"]) and written["seconds"] > 0
    places = [angle * QUICK.candidates / math.pi for angle in written["next_angles"]]
    assert sorted(places) == pytest.approx([1, 3])  # those that are not measured
    assert written["precisions"][-1] != written["precisions"][0]
    page = (tmp_path / "ct" / "report.html").read_text()
    assert "PSNR" in page and "data:image/png;base64" in page and (tmp_path / "ct" / "reconstruction.png").exists()


def test_the_command_tells_its_numbers_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Any] = {"psnr": {"dip": 30.0}, "coverage": 0.9, "next_angles": [1.5], "seconds": 2.0}
    densities = {"marginal_log_likelihood": 1.0, "patch_log_likelihood": 1.0}
    monkeypatch.setattr(ct, "demonstrate", lambda *_, **__: found | densities)
    main(["ct", "demo", "--out", str(tmp_path / "made"), "--json"])
    said = capsys.readouterr()
    assert json.loads(said.out) == found | {"results": str(tmp_path / "made" / "results.json")}
    assert "PSNR         DIP 30.00 dB" in said.err
