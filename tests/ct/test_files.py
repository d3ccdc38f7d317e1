"""What was written is read; what is no sinogram is refused."""

from __future__ import annotations

import builtins
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lapwing.ct.files import read_scan
from lapwing.ground.errors import ConfigError, DataError, UnsupportedError
from tests.posterior_cases import normal, refused

Y = normal(3, 5)
STACK = normal(3, 2, 5)


def test_arrays_come_back_with_their_angles(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", STACK.numpy())
    np.savez(tmp_path / "y.npz", sinogram=Y.numpy().astype(">f8"), angles=np.array([0.0, 1.0, 3.0]))
    plain, named = read_scan(tmp_path / "y.npy", torch.float64), read_scan(str(tmp_path / "y.npz"), torch.float64)
    assert torch.equal(plain.sinogram, STACK) and plain.angles is None
    assert torch.equal(named.sinogram, Y) and named.angles is not None and named.angles.tolist() == [0.0, 1.0, 3.0]
    assert read_scan(tmp_path / "y.npy").sinogram.dtype == torch.float32


def test_projections_are_pages_of_one_file_or_files_by_name(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    counts = (1000 * STACK.abs()).numpy().astype("uint16")
    tifffile.imwrite(tmp_path / "all.tif", counts, photometric="minisblack")
    (tmp_path / "one by one").mkdir()
    for i in (2, 0, 1):
        tifffile.imwrite(tmp_path / "one by one" / f"p{i}.TIFF", counts[i])
    (tmp_path / "one by one" / "notes.txt").write_text("", encoding="utf-8")
    for path in (tmp_path / "all.tif", tmp_path / "one by one"):
        assert torch.equal(read_scan(path).sinogram, torch.tensor(counts.astype("float32")))
    tifffile.imwrite(tmp_path / "rows.tif", counts[:, :1], photometric="minisblack")
    assert read_scan(tmp_path / "rows.tif").sinogram.shape == (3, 5)
    tifffile.imwrite(tmp_path / "one by one" / "p3.tif", counts[0, :, :4])
    with refused(DataError, "[2, 5] in p0.TIFF, [2, 4] in p3.tif"):
        read_scan(tmp_path / "one by one")


def test_files_of_matlab_have_angles_and_variances_of_rays(tmp_path: Path) -> None:
    """Whose vectors have two axes, and whose files may hold other arrays."""
    savemat = pytest.importorskip("scipy.io").savemat
    arrays = {"m": STACK.numpy(), "angles": np.array([[0.0, 1.0, 3.0]]), "variance": STACK.square().numpy() + 0.1}
    savemat(tmp_path / "scan.mat", arrays | {"A": np.eye(2)})
    found = read_scan(tmp_path / "scan.mat", torch.float64, name="m")
    assert torch.equal(found.sinogram, STACK) and found.angles is not None and found.angles.tolist() == [0.0, 1.0, 3.0]
    assert found.variance is not None
    torch.testing.assert_close(found.variance, STACK.square() + 0.1)
    with refused(DataError, "an array named sinogram in"):
        read_scan(tmp_path / "scan.mat")
    (tmp_path / "text.mat").write_text("1, 2" * 99, encoding="utf-8")
    with refused(DataError, "which SciPy cannot read"):
        read_scan(tmp_path / "text.mat")


@pytest.mark.parametrize("name", ["scan.h5", "scan.mat"])
def test_files_of_hdf5_are_read_by_the_paths_of_their_arrays(name: str, tmp_path: Path) -> None:
    """Those of MATLAB, of version 7.3, have their axes in the other order behind a header of 512 bytes."""
    h5py = pytest.importorskip("h5py", reason="h5py reads HDF5")
    turned = (lambda array: array.T) if name == "scan.mat" else (lambda array: array)
    with h5py.File(tmp_path / name, "w", userblock_size=512) as file:
        file["exchange/data"] = turned(STACK.numpy())
        file["exchange/angles"] = np.array([[0.0], [1.0], [3.0]])
    with (tmp_path / name).open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")
    found = read_scan(tmp_path / name, torch.float64, name="exchange/data")
    assert torch.equal(found.sinogram, STACK) and found.variance is None
    assert found.angles is not None and found.angles.tolist() == [0.0, 1.0, 3.0]
    with refused(DataError, "an array named exchange/dark in"):
        read_scan(tmp_path / name, name="exchange/dark")
    (tmp_path / "text.h5").write_text("1, 2", encoding="utf-8")
    with refused(DataError, "which h5py cannot read"):
        read_scan(tmp_path / "text.h5")


def test_a_variance_is_of_each_ray_and_positive(tmp_path: Path) -> None:
    for name, variance in (("few", Y[:2].square()), ("none", 0 * Y)):
        np.savez(tmp_path / f"{name}.npz", sinogram=Y.numpy(), variance=variance.numpy())
        with refused(DataError, "a positive variance for each ray of"):
            read_scan(tmp_path / f"{name}.npz")


def test_what_is_no_sinogram_is_refused(tmp_path: Path) -> None:
    with refused(DataError, "Got no file"):
        read_scan(tmp_path / "nothing.npy")
    (tmp_path / "text.npy").write_text("1, 2", encoding="utf-8")
    with refused(DataError, "which NumPy cannot read"):
        read_scan(tmp_path / "text.npy")
    np.savez(tmp_path / "other.npz", image=Y.numpy())
    with refused(DataError, "an array named sinogram in"):
        read_scan(tmp_path / "other.npz")
    np.save(tmp_path / "flat.npy", np.zeros(5))
    with refused(DataError, "numbers [angles, bins]"):
        read_scan(tmp_path / "flat.npy")
    np.save(tmp_path / "words.npy", np.array([["a"]]))
    with refused(DataError, "Got <U1 [1, 1] in"):
        read_scan(tmp_path / "words.npy")
    ragged = np.array([[1.0], [2.0, 3.0]], dtype=object)
    np.savez(tmp_path / "ragged.npz", sinogram=ragged)
    with refused(DataError, "numbers named sinogram in"):
        read_scan(tmp_path / "ragged.npz")
    np.savez(tmp_path / "bent.npz", sinogram=Y.numpy(), angles=ragged)
    with refused(DataError, "numbers named angles in"):
        read_scan(tmp_path / "bent.npz")
    np.savez(tmp_path / "turned.npz", sinogram=Y.mT.numpy(), angles=np.zeros(3))
    with refused(DataError, "a sinogram [5, 3]. Try sinogram.T"):
        read_scan(tmp_path / "turned.npz")
    np.savez(tmp_path / "degrees.npz", sinogram=Y.numpy(), angles=np.array([0, 60, 120]))
    with refused(ConfigError, "look like degrees"):
        read_scan(tmp_path / "degrees.npz")
    np.savez(tmp_path / "lost.npz", sinogram=Y.numpy(), angles=np.array([0, math.nan, 1]))
    with refused(DataError, "finite angles"):
        read_scan(tmp_path / "lost.npz")
    (tmp_path / "empty").mkdir()
    with refused(DataError, "TIFF files in"):
        read_scan(tmp_path / "empty")


@pytest.mark.parametrize(("file", "package"), [("", "tifffile"), ("scan.h5", "h5py")])
def test_without_a_package_there_is_a_sentence(
    file: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name == package:
            raise ImportError(name)
        return known(name, *rest)

    (tmp_path / "scan.h5").touch()
    monkeypatch.setattr(builtins, "__import__", absent)
    with refused(UnsupportedError, f"Try pip install {package}"):
        read_scan(tmp_path / file)
