"""The demo of tomography from end to end, very small: what it promises is there."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import pytest

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
