"""The angles to measure next, from a scan so far: what is proposed, what is written, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lapwing.cli import ct, main
from lapwing.cli.continuation import continued
from lapwing.cli.imaging import ImagingEffort
from lapwing.ct import Ellipses, FanBeam, Geometry, Parallel2d, Parallel3d, equidistant
from lapwing.ground.errors import ConfigError
from tests.posterior_cases import refused

pytestmark = pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")  # five steps are no fit

DISC = Ellipses(((1.0, 3.0, 1.5, 0.5, -0.5, 0.3),))
SO_FAR = Parallel2d((7, 7), [0.0, math.pi / 3 + 0.001], detector=8)
SMALL = ImagingEffort(channels=4, steps=5, samples=4, draws=40)


def proposed(geometry: Geometry, out: Path, **options: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {"count": 2, "candidates": 6, "criterion": "ese"} | options
    scan = DISC.sinogram(geometry).float() if geometry.slices == 1 else torch.ones(geometry.sinogram)
    return continued(geometry, scan, 0.1, out=out, effort=SMALL, **chosen)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[dict[str, Any], Path]]:
    """What is proposed by a criterion after the scan so far, and where it was written."""

    @cache
    def by(criterion: str) -> tuple[dict[str, Any], Path]:
        out = tmp_path_factory.mktemp(criterion) / "next"
        return proposed(SO_FAR, out, criterion=criterion), out

    return by


@pytest.mark.parametrize("criterion", ["ese", "eig"])
def test_what_is_left_is_judged_and_the_best_of_it_comes_first(criterion: str, judged: Any) -> None:
    found, out = judged(criterion)
    left = [math.pi * i / 6 for i in (1, 3, 4, 5)]  # those at hand are 0 and, nearly, 2
    assert found["candidates"] == pytest.approx(left) and found["measured"] == pytest.approx(SO_FAR.theta.tolist())
    assert found["next_angles"][0] == found["candidates"][int(np.argmax(found["scores"]))]
    assert len(set(found["next_angles"])) == 2 and set(found["next_angles"]) <= set(found["candidates"])
    assert found["settings"]["pixels"] == [8, 8] and all(np.isfinite(found["scores"]))
    written = json.loads((out / "results.json").read_text())
    assert written["next_angles"] == found["next_angles"] and written["seconds"] > 0
    page = (out / "report.html").read_text()
    assert "data:image/png;base64" in page and f"{math.degrees(found['next_angles'][0]):.4g}°" in page


def test_fans_turn_all_the_way_and_units_do_not_matter(judged: Any, tmp_path: Path) -> None:
    fan = FanBeam((8, 8), [0.0, 2.0], 10, source=40.0)
    assert max(proposed(fan, tmp_path)["candidates"]) == pytest.approx(5 / 3 * math.pi)
    one, _ = judged("ese")
    fine = Parallel2d((7, 7), SO_FAR.theta, detector=8, pixel_size=2**-6)
    scan = DISC.sinogram(SO_FAR).float()
    other = continued(fine, scan, 0.1, count=2, candidates=6, criterion="ese", out=tmp_path, effort=SMALL)
    assert other["scores"] == pytest.approx(one["scores"], rel=1e-4)


def test_the_command_reads_a_scan_and_says_the_angles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def answered(geometry: Geometry, sinogram: torch.Tensor, noise_std: float, **options: Any) -> dict[str, Any]:
        given.update(options, geometry=geometry, noise_std=noise_std)
        return {"next_angles": [1.25], "seconds": 3.0, "held_out": 1.25}

    monkeypatch.setattr(ct, "continued", answered)
    np.savez(tmp_path / "scan.npz", sinogram=DISC.sinogram(SO_FAR).numpy(), angles=SO_FAR.theta.numpy())
    flags = ["--pixels", "7", "--count", "1", "--criterion", "eig", "--noise-std", "0.2", "--out", str(tmp_path)]
    main(["ct", "propose", str(tmp_path / "scan.npz"), *flags])
    assert given["geometry"].pixels == (7, 7) and given["geometry"].bins == 8 and given["noise_std"] == 0.2
    assert (given["count"], given["candidates"], given["criterion"]) == (1, 180, "eig")
    said = capsys.readouterr().out
    assert "next angles  1.2500 radians" in said and "held out     1.25," in said and "1 is noise alone" in said
    main(["ct", "propose", str(tmp_path / "scan.npz"), *flags[:-1], str(tmp_path / "again"), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["next_angles"] == [1.25] and told["results"] == str(tmp_path / "again" / "results.json")


def test_what_cannot_be_continued_is_a_sentence(tmp_path: Path) -> None:
    with refused(ConfigError, "at most 4, the angles left"):
        proposed(SO_FAR, tmp_path, count=5)
    with refused(ConfigError, "a scan of one slice"):
        proposed(Parallel3d((8, 8), equidistant(2), 8, layers=3), tmp_path)
