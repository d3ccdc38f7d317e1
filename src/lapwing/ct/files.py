"""Sinograms from files: NumPy's, and stacks of TIFF projections."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ct.geometry import in_radians
from lapwing.ground.arrays import read_arrays
from lapwing.ground.errors import DataError, UnsupportedError

TIFF = (".tif", ".tiff")


@final
@dataclass(frozen=True, eq=False)
class Scan:
    """What a file holds of a scan.

    Args:
        sinogram: ``[angles, bins]``, or ``[angles, slices, bins]``.
        angles: In radians, float64, if the file has them.
    """

    sinogram: Float[Tensor, "angles *bins"]
    angles: Float[Tensor, " angles"] | None


def read_scan(path: str | Path, dtype: torch.dtype = torch.float32) -> Scan:
    """Read a sinogram, and angles where the file has them.

    Args:
        path: An ``.npy`` with the sinogram; an ``.npz`` with ``sinogram``, and perhaps ``angles``; a TIFF with a page
            for each angle; or a folder of TIFF files, one for each angle in the order of their names. A page is a
            projection ``[slices, bins]``; where all have one row, they make a sinogram ``[angles, bins]``.
        dtype: Of the sinogram.

    Returns:
        The sinogram, as it was measured: what does not fit a geometry is refused by ``geometry.check``.

    Raises:
        ConfigError: If angles look like degrees.
        DataError: If there is no such file, or it holds something else.
        UnsupportedError: For TIFF, without the package tifffile.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(Path(folder, "scan.npz"), sinogram=np.zeros((3, 5)), angles=np.arange(3.0))
        ...     scan = read_scan(Path(folder, "scan.npz"))
        >>> scan.sinogram.shape, scan.angles.tolist()
        (torch.Size([3, 5]), [0.0, 1.0, 2.0])
    """
    path = Path(path)
    expected = "a sinogram as .npy, .npz, .tif, or a folder of .tif"
    if not path.exists():
        raise DataError(expected, f"no file {path}", "its path")
    if path.is_dir() or path.suffix.lower() in TIFF:
        return Scan(_checked(_pages(path), path, dtype), None)
    arrays = read_arrays(path, expected, "numpy.save or numpy.savez", names=("sinogram", "angles"))
    if "" in arrays:
        return Scan(_checked(arrays[""], path, dtype), None)
    if "sinogram" not in arrays:
        raise DataError(f"an array named sinogram in {path}", "none", "numpy.savez(path, sinogram=, angles=)")
    sinogram = _checked(arrays["sinogram"], path, dtype)
    angles = in_radians(arrays["angles"]) if "angles" in arrays else None
    if angles is not None and len(angles) != len(sinogram):
        got = f"{len(angles)} angles for a sinogram {list(sinogram.shape)}"
        raise DataError(f"an angle for each projection of {path}, which lead", got, "sinogram.T")
    return Scan(sinogram, angles)


def _pages(path: Path) -> np.ndarray:
    """The pages of one file, or of all files of a folder, on top of each other."""
    try:
        import tifffile
    except ImportError as error:
        raise UnsupportedError("tifffile, which reads TIFF", "no such package", "pip install tifffile") from error
    files = sorted(f for f in path.iterdir() if f.suffix.lower() in TIFF) if path.is_dir() else [path]
    if not files:
        raise DataError(f"TIFF files in {path}", "none", "the folder of the projections, one an angle")
    pages = [np.asarray(tifffile.imread(file)) for file in files]
    if not path.is_dir():
        return pages[0]
    shapes = {page.shape for page in pages}
    if len(shapes) > 1:
        odd = next(i for i, page in enumerate(pages) if page.shape != pages[0].shape)
        got = f"{list(pages[0].shape)} in {files[0].name}, {list(pages[odd].shape)} in {files[odd].name}"
        raise DataError("projections of one shape", got, "leaving out other images, such as dark and flat fields")
    return np.stack(pages)


def _checked(array: Any, path: Path, dtype: torch.dtype) -> Tensor:
    """A sinogram; one row of bins a projection is no axis of its own."""
    if array.ndim not in (2, 3) or array.size == 0 or array.dtype.kind not in "fiu":
        got = f"{array.dtype} {list(array.shape)} in {path}"
        raise DataError("numbers [angles, bins] or [angles, slices, bins]", got, "a page for each angle")
    found = torch.as_tensor(np.ascontiguousarray(array).astype(np.float64)).to(dtype)
    return found[:, 0] if found.ndim == 3 and found.shape[1] == 1 else found
