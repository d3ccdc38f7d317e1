"""``lapwing ct reconstruct``: a scan in, an image out."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lapwing.cli import main
from lapwing.ct import (
    Ellipses,
    FanBeam,
    Geometry,
    Parallel2d,
    Projector,
    add_gaussian,
    equidistant,
    walnut,
)
from lapwing.ground.errors import DataWarning

DISC = Ellipses(((1.0, 5.0, 5.0, 1.0, -2.0, 0.0),))
PLANE = Parallel2d((20, 20), equidistant(24), detector=24)


def typed(*arguments: str | Path) -> None:
    main(["ct", "reconstruct", *map(str, arguments)])


def saved(path: Path, geometry: Geometry) -> Path:
    np.savez(path, sinogram=DISC.sinogram(geometry).numpy(), angles=geometry.theta.numpy())
    return path


@pytest.mark.parametrize("method", ["fbp", "tv"])
def test_a_disc_is_found_and_drawn(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scan, out = saved(tmp_path / "scan.npz", PLANE), tmp_path / "made" / "image.npy"
    typed(scan, "--method", method, "--pixels", "20", "--out", out.parent)
    image, said = torch.tensor(np.load(out)), capsys.readouterr().out
    truth = DISC.image(PLANE)
    assert image.shape == (20, 20) and float((image - truth).norm() / truth.norm()) < 0.25
    assert out.with_suffix(".png").stat().st_size > 0
    assert f"saved        {out}" in said and "24 × 24" in said and ("steps" in said) == (method == "tv")


@pytest.mark.filterwarnings("ignore::lapwing.ground.errors.ConvergenceWarning")  # few steps are no fit
def test_a_deep_image_prior_has_error_bars_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of photons that were counted, behind one slice of two: every ray has a noise of its own."""
    counts = 1e4 * np.exp(-0.1 * DISC.sinogram(PLANE).numpy())
    np.savez(tmp_path / "scan.npz", counts=np.stack([0 * counts, counts], 1), angles=PLANE.theta.numpy())
    flags = ("--name", "counts", "--slice", "1", "--photons", "1e4", "--pixels", "20", "--samples", "4")
    typed(tmp_path / "scan.npz", "--method", "dip", "--steps", "20", *flags, "--out", tmp_path / "made")
    image, std = (np.load(tmp_path / "made" / f"{name}.npy") for name in ("image", "std"))
    assert image.shape == std.shape and std.min() > 0 and np.isfinite(image).all()
    said = capsys.readouterr().out
    assert "noise        of each ray, standard deviations from" in said and "held out" in said
    page = (tmp_path / "made" / "report.html").read_text(encoding="utf-8")
    assert "of each ray's own" in page.replace("&#39;", "'") and "data:image/png;base64" in page
    found = json.loads((tmp_path / "made" / "results.json").read_text(encoding="utf-8"))
    assert found["std"] == pytest.approx(std.mean(), rel=1e-5) and found["settings"]["steps"] == 20


def test_error_bars_of_several_slices_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "stack.npy", np.stack([DISC.sinogram(PLANE).numpy()] * 2, 1))
    with pytest.raises(SystemExit, match="2"):
        typed(tmp_path / "stack.npy", "--method", "dip", "--out", tmp_path / "volume")
    assert "Try the slice that matters most: --slice 0" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        typed(tmp_path / "stack.npy", "--slice", "2", "--out", tmp_path / "volume")
    assert "--slice from 0 to 1. Got 2" in capsys.readouterr().err


def test_fans_and_slices_have_their_geometry(tmp_path: Path) -> None:
    fan = FanBeam((20, 20), equidistant(40, 2 * math.pi), 30, 0.5, source=30.0, distance=15.0)
    flags = ("--pixels", "20", "--pixel-size", "0.5", "--source", "30", "--distance", "15", "--method", "fbp")
    typed(saved(tmp_path / "fan.npz", fan), *flags, "--out", tmp_path / "fan")
    image, truth = np.load(tmp_path / "fan" / "image.npy"), DISC.image(fan).numpy()
    assert abs(image[truth == 1].mean() - 1) < 0.1 > abs(image[truth == 0].mean())
    np.save(tmp_path / "stack.npy", np.stack([DISC.sinogram(PLANE).numpy(), np.zeros((24, 24))], 1))
    typed(tmp_path / "stack.npy", "--method", "fbp", "--out", tmp_path / "volume")
    volume = np.load(tmp_path / "volume" / "image.npy")
    assert volume.shape == (2, 24, 24) and volume[0].max() > 0.8 and abs(volume[1]).max() == 0


def test_the_weight_is_of_any_unit(tmp_path: Path) -> None:
    """The same scan with lengths in hundredths has an image a hundred times as large."""
    scan = saved(tmp_path / "scan.npz", PLANE)
    for size, name in (("1", "one"), ("0.01", "small")):
        typed(scan, "--pixels", "10", "--pixel-size", size, "--out", tmp_path / name)
    one, small = (np.load(tmp_path / name / "image.npy") for name in ("one", "small"))
    np.testing.assert_allclose(small / 100, one, atol=0.01)


def test_angles_come_from_a_file_or_are_said_to_be_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "scan.npy", DISC.sinogram(PLANE).numpy())
    np.savetxt(tmp_path / "angles.txt", PLANE.theta.numpy())
    flags = (tmp_path / "scan.npy", "--method", "fbp", "--out")
    typed(*flags, tmp_path / "taken")
    assert "24 equidistant ones over half a turn" in capsys.readouterr().out
    typed(*flags, tmp_path / "given", "--angles", tmp_path / "angles.txt")
    given, taken = (np.load(tmp_path / name / "image.npy") for name in ("given", "taken"))
    np.testing.assert_allclose(given, taken, atol=1e-6)
    assert "equidistant" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("\n".join(map(str, range(0, 180, 60))), "Expected 24 angles, one a projection. Got [3]"),
        ("\n".join(map(str, range(24))), "which look like degrees. Try torch.deg2rad"),
        ("north", "Expected a file of angles"),
    ],
)
def test_wrong_angles_are_a_sentence(
    written: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "scan.npy", DISC.sinogram(PLANE).numpy())
    (tmp_path / "angles.txt").write_text(written, encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        typed(tmp_path / "scan.npy", "--angles", tmp_path / "angles.txt")
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "flags", "sentence"),
    [
        ("reconstruct", ("--pixels", "0"), "Expected --pixels of at least 1. Got 0"),
        ("reconstruct", ("--weight", "-1"), "Expected a positive --weight. Got -1"),
        ("reconstruct", ("--noise-std", "0"), "Expected a positive finite --noise-std. Got 0"),
        ("reconstruct", ("--steps", "0"), "Expected --steps of at least 1. Got 0"),
        ("reconstruct", ("--photons", "0"), "Expected a positive --photons. Got 0"),
        ("reconstruct", ("--angles", "lost.txt"), "a file of angles for --angles. Got no file lost.txt"),
        ("propose", ("--seed", "-1"), "Expected --seed of at least 0. Got -1"),
        ("propose", ("--count", "0"), "Expected --count of at least 1. Got 0"),
        ("propose", ("--candidates", "0"), "Expected --candidates of at least 1. Got 0"),
        ("propose", ("--noise-std", "nan"), "Expected a positive finite --noise-std. Got nan"),
        ("demo", ("--seed", "-1"), "Expected --seed of at least 0. Got -1"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_any_work(
    command: str, flags: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "scan.npy", DISC.sinogram(PLANE).numpy())
    scan = () if command == "demo" else (str(tmp_path / "scan.npy"),)
    with pytest.raises(SystemExit, match="2"):
        main(["ct", command, *scan, *flags, "--out", str(tmp_path / "out")])
    assert sentence in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["reconstruct", "propose"])
@pytest.mark.parametrize(("factor", "came"), [(0.0, "zeros alone"), (-1.0, "values of mean -")])
def test_a_scan_that_shows_nothing_is_refused(
    command: str, factor: float, came: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "scan.npy", factor * DISC.sinogram(PLANE).numpy())
    with pytest.raises(SystemExit, match="2"):
        main(["ct", command, str(tmp_path / "scan.npy"), "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert f"that shows an object, positive line integrals. Got {came}" in said and "log_transform" in said


def test_raw_counts_are_warned_of(tmp_path: Path) -> None:
    np.save(tmp_path / "scan.npy", np.round(1e4 * np.exp(-0.1 * DISC.sinogram(PLANE).numpy())))
    with pytest.warns(DataWarning, match="whole numbers up to 10000"):
        typed(tmp_path / "scan.npy", "--method", "fbp", "--out", tmp_path / "out")


@pytest.mark.parametrize("command", ["reconstruct", "propose"])
def test_noise_is_that_of_the_scan(
    command: str,
    generator: torch.Generator,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two hundredths of the mean, of a small scan with edges everywhere."""
    geometry = Parallel2d((24, 24), equidistant(14))
    clean = Projector(geometry, torch.float64).push(walnut((24, 24), generator=generator).flatten())
    y, std = add_gaussian(clean.view(geometry.sinogram), 0.02, generator=generator)
    np.savez(tmp_path / "scan.npz", sinogram=y.numpy(), angles=geometry.theta.numpy())
    taken: list[float] = []

    def proposed(*args: Any, **_: Any) -> dict[str, Any]:
        taken.append(args[2])
        return {"held_out": 1.0, "next_angles": [0.0], "seconds": 0.0}

    monkeypatch.setattr("lapwing.cli.ct.continued", proposed)
    main(["ct", command, str(tmp_path / "scan.npz"), "--pixels", "24", "--out", str(tmp_path / "out")])
    (said,) = re.findall(r"noise        standard deviation (\S+) ± (\S+), told from the scan", capsys.readouterr().out)
    value, stderr = map(float, said)
    assert abs(value - std) < 3 * stderr < 0.5 * std
    assert command == "reconstruct" or taken == [pytest.approx(value, rel=0.05)]


def test_noise_that_is_known_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Total variation weighs the more, the larger the noise."""
    scan, flags = saved(tmp_path / "scan.npz", PLANE), ("--pixels", "20", "--noise-std")
    rough = []
    for std in ("0.1", "2.0"):
        typed(scan, *flags, std, "--out", tmp_path / std)
        rough.append(np.abs(np.diff(np.load(tmp_path / std / "image.npy"))).sum())
    assert "noise        standard deviation 0.1, as given\n" in capsys.readouterr().out and rough[1] < 0.8 * rough[0]
