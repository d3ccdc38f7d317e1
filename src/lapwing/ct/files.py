"""Sinograms from files: NumPy's, MATLAB's, HDF5, and stacks of TIFF projections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ct.geometry import in_radians
from lapwing.ground.arrays import UNREADABLE, read_arrays
from lapwing.ground.errors import DataError, UnsupportedError

TIFF = (".tif", ".tiff")

HDF5 = (".h5", ".hdf5", ".hdf", ".nxs")

OPTIONAL = ("angles", "variance")
"""What a file may have beside its sinogram, in the same group."""


@final
@dataclass(frozen=True, eq=False)
class Scan:
    """What a file holds of a scan.

    Args:
        sinogram: ``[angles, bins]``, or ``[angles, slices, bins]``.
        angles: In radians, float64, if the file has them.
        variance: Of the noise of each ray, in the shape of the sinogram, if the file has it.
    """

    sinogram: Float[Tensor, "angles *bins"]
    angles: Float[Tensor, " angles"] | None
    variance: Float[Tensor, "angles *bins"] | None = None


def read_scan(path: str | Path, dtype: torch.dtype = torch.float32, *, name: str = "sinogram") -> Scan:
    """Read a sinogram, and angles and variances of rays where the file has them.

    Args:
        path: An ``.npy`` with the sinogram; an ``.npz``, MATLAB's ``.mat`` or HDF5, ``.h5``, with ``sinogram``, and
            perhaps ``angles`` and ``variance``, of each ray; a TIFF with a page for each angle; or a folder of TIFF
            files, one for each angle in the order of their names. A page is a projection ``[slices, bins]``; where all
            have one row, they make a sinogram ``[angles, bins]``.
        dtype: Of the sinogram.
        name: What a file of several arrays calls the sinogram, in HDF5 its path, such as ``exchange/data``; angles and
            variances are looked for beside it.

    Returns:
        The sinogram, as it was measured: what does not fit a geometry is refused by ``geometry.check``.

    Raises:
        ConfigError: If angles look like degrees.
        DataError: If there is no such file, or it holds something else.
        UnsupportedError: For TIFF without the package tifffile, for HDF5, and MATLAB's of version 7.3, without h5py.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(Path(folder, "scan.npz"), sinogram=np.zeros((3, 5)), angles=np.arange(3.0))
        ...     scan = read_scan(Path(folder, "scan.npz"))
        >>> scan.sinogram.shape, scan.angles.tolist()
        (torch.Size([3, 5]), [0.0, 1.0, 2.0])
    """
    path = Path(path)
    expected = "a sinogram as .npy, .npz, .mat, .h5, .tif, or a folder of .tif"
    if not path.exists():
        raise DataError(expected, f"no file {path}", "its path")
    if path.is_dir() or path.suffix.lower() in TIFF:
        return Scan(_checked(_pages(path), path, dtype), None)
    group = name.rpartition("/")[0]
    beside = {each: f"{group}/{each}" if group else each for each in OPTIONAL}
    arrays = _named(path, expected, (name, *beside.values()))
    if "" in arrays:
        return Scan(_checked(arrays[""], path, dtype), None)
    if name not in arrays:
        hint = f"numpy.savez(path, {name}=, angles=), or name= as the file has it"
        raise DataError(f"an array named {name} in {path}", "none", hint)
    sinogram = _checked(arrays[name], path, dtype)
    found = {each: arrays[there] for each, there in beside.items() if there in arrays}
    angles = in_radians(_vector(found["angles"])) if "angles" in found else None
    if angles is not None and len(angles) != len(sinogram):
        got = f"{len(angles)} angles for a sinogram {list(sinogram.shape)}"
        raise DataError(f"an angle for each projection of {path}, which lead", got, "sinogram.T")
    variance = _checked(found["variance"], path, dtype) if "variance" in found else None
    if variance is not None and (variance.shape != sinogram.shape or not bool((variance > 0).all())):
        got = f"{list(variance.shape)}, from {float(variance.min()):.3g}, for a sinogram {list(sinogram.shape)}"
        raise DataError(f"a positive variance for each ray of {path}", got, "leaving the variances out")
    return Scan(sinogram, angles, variance)


def _named(path: Path, expected: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays of a file by these names, as far as it has them; the one of an ``.npy`` by the name ""."""
    if path.suffix.lower() == ".mat":
        return _of_matlab(path, names)
    if path.suffix.lower() in HDF5:
        return _of_hdf5(path, names)
    return read_arrays(path, expected, "numpy.save or numpy.savez", names=names)


def _of_matlab(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Those of MATLAB; a file of version 7.3 is HDF5, with axes in the other order."""
    from scipy.io import loadmat  # a tenth of a second to import
    from scipy.io.matlab import MatReadError

    try:
        found: dict[str, Any] = loadmat(str(path), variable_names=list(names))
    except NotImplementedError:
        return {name: array.T for name, array in _of_hdf5(path, names).items()}
    except (*UNREADABLE, MatReadError, TypeError) as error:
        raise DataError("a file of MATLAB", f"{path}, which SciPy cannot read: {error!s:.120}", "save -v7") from error
    return {name: found[name] for name in names if name in found}


def _of_hdf5(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Those of HDF5, by their paths in the file."""
    try:
        import h5py  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UnsupportedError(f"h5py, which reads {path.name}", "no such package", "pip install h5py") from error
    try:
        with h5py.File(path, "r") as file:
            found: dict[str, Any] = {name: file.get(name) for name in names}
            return {name: node[()] for name, node in found.items() if isinstance(node, h5py.Dataset)}
    except UNREADABLE as error:
        raise DataError("a file of HDF5", f"{path}, which h5py cannot read: {error!s:.120}", "h5py.File") from error


def _vector(array: np.ndarray) -> np.ndarray:
    """Numbers without axes of one, which MATLAB adds."""
    return array.reshape(-1) if max(array.shape, default=1) == array.size else array


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
