"""Arrays of NumPy's files, .npy and .npz: read whole, or refused before anything is allocated."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Collection
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from lapwing.ground.errors import DataError

UNREADABLE = (
    ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError,
)  # fmt: skip
"""What NumPy and zipfile raise for a file that is damaged, encrypted, or something else."""


def read_arrays(
    path: Path, expected: str, hint: str, *, names: Collection[str] | None = None
) -> dict[str, NDArray[Any]]:
    """The arrays of a file by name: all of an ``.npz``, the one of an ``.npy`` by the name "".

    Args:
        path: The file.
        expected: What it should be, for the error.
        hint: What to try, for the error.
        names: Those that are wanted of an ``.npz``; others are not read. ``None`` for all.

    Raises:
        DataError: If there is no such file, if NumPy cannot read it without pickle, or if it says that it holds more
            numbers than it has bytes for.

    Cost:
        The bytes of its arrays.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.npz"
        >>> np.savez(path, x=np.zeros((2, 3)))
        >>> {name: array.shape for name, array in read_arrays(path, "numbers", "numpy.savez").items()}
        {'x': (2, 3)}
    """
    reading = expected
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                return {"": _array(file, path.stat().st_size)}
            arrays: dict[str, NDArray[Any]] = {}
            with zipfile.ZipFile(file) as members:
                for member in members.infolist():
                    name = member.filename.removesuffix(".npy")
                    if names is None or name in names:
                        reading = f"numbers named {name} in {path}"
                        with members.open(member) as part:
                            arrays[name] = _array(part, member.file_size)
            return arrays
    except UNREADABLE as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(reading, f"{path}, which NumPy cannot read: {reason!s:.120}", hint) from error


def _array(file: BufferedIOBase | IO[bytes], size: int) -> NDArray[Any]:
    """One array, if the file can hold as many bytes as its header says."""
    shape, dtype = _header(file)
    if (bytes_said := math.prod(shape) * dtype.itemsize) > size:
        raise ValueError(f"its header says {bytes_said:,} bytes, and it has {size:,}")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def _header(file: BufferedIOBase | IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array."""
    file.seek(0)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype
