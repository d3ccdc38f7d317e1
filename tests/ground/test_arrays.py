"""Files of NumPy are read whole, or refused in a sentence before anything is allocated."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lapwing.ground.arrays import read_arrays
from lapwing.ground.errors import DataError

TERABYTES = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}


def claiming() -> bytes:
    """An array that says it has 7 TiB, and has none."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, TERABYTES)
    return content.getvalue()


def test_arrays_come_by_name_and_a_single_one_without(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "several.npz", a=np.arange(3), b=np.ones((2, 1), np.float32))
    found = read_arrays(tmp_path / "several.npz", "arrays", "")
    assert found["a"].tolist() == [0, 1, 2] and found["b"].shape == (2, 1) and found["b"].dtype == np.float32
    np.save(tmp_path / "one.npy", np.asfortranarray([[1.0, 2.0], [3.0, 4.0]]))
    assert read_arrays(tmp_path / "one.npy", "arrays", "")[""].tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("inside", [False, True])
def test_more_numbers_than_bytes_are_refused(inside: bool, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(claiming())
    if inside:
        with zipfile.ZipFile(path, "w") as members:
            members.writestr("x.npy", claiming())
    with pytest.raises(DataError, match="its header says 8,000,000,000,000 bytes"):
        read_arrays(path, "arrays", "")


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04 cut short", b"x,y\n1,2\n", b"\x93NUMPY\x01\x00\xff\xff", claiming()[:-70]]
)
def test_what_is_none_is_refused_and_so_is_a_missing_file(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="numbers in a file"):
        read_arrays(tmp_path / "a", "numbers in a file", "")
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DataError, match="which NumPy cannot read"):
        read_arrays(tmp_path / "a", "numbers in a file", "")


def test_a_damaged_member_and_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(1000))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[200] ^= 255
    (tmp_path / "a.npz").write_bytes(content)
    np.savez(tmp_path / "b.npz", x=np.array([None], object))
    for name in ("a.npz", "b.npz"):
        with pytest.raises(DataError, match="which NumPy cannot read"):
            read_arrays(tmp_path / name, "arrays", "")
