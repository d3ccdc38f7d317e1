"""Tables of numbers with named columns, from files and to them."""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from lapwing.ground.arrays import read_arrays
from lapwing.ground.errors import ConfigError, DataError
from lapwing.ground.files.atomic import replacing


def read_table(path: Path, columns: Sequence[str]) -> np.ndarray:
    """Columns of a CSV file whose first line names them, of a ``.parquet`` file, or of the arrays of an ``.npz`` file.

    Args:
        path: The file. An array ``[n]`` of an ``.npz`` file is a column of its name, one ``[n, p]`` is p of them,
            ``x[0]``, ``x[1]``, ...
        columns: Which, in this order; see ``names_of``.

    Returns:
        One row an example, ``[n, p]``, float64.

    Raises:
        DataError: If it has no such columns, or a column holds anything but finite numbers.
    """
    names = names_of(path)
    absent = [name for name in columns if names.count(name) != 1]
    if absent or not columns:
        hint = f"names among {', '.join(names[:9])}" if any(names) else "a first line that names the columns"
        if any(mark in name for name in names for mark in ";\t"):
            hint = f"commas between columns, not as in {names[0]!r:.40}"
        raise DataError(f"one column of each name in {path}", f"none or several of {', '.join(absent)}", hint)
    places = [names.index(name) for name in columns]
    if path.suffix in (".npz", ".parquet"):
        values = _arrays(path)[1][:, places]
        for row, place in np.argwhere(~np.isfinite(values))[:1]:
            got = f"{values[row, place]} in row {row}"
            raise DataError(f"finite numbers in {columns[place]} of {path}", got, "leaving such rows out")
        return values
    try:
        options: dict[str, Any] = {"delimiter": ",", "skiprows": 1, "ndmin": 2, "quotechar": '"', "comments": None}
        with warnings.catch_warnings(action="ignore"):  # that there are no data is told below
            values = np.loadtxt(path, usecols=places, encoding="utf-8-sig", **options)
    except ValueError as error:
        raise _culprit(path, names, places) or DataError(f"a table of numbers in {path}", str(error), "CSV") from error
    if not np.isfinite(values).all() and (error := _culprit(path, names, places)):
        raise error
    if not len(values):
        raise DataError(f"rows below the header of {path}", "none", "one example a line")
    return values


def no_target(path: Path, target: str) -> DataError:
    """What to say of a table that lacks the column ``--target``.

    Args:
        path: The table.
        target: What the column should be called.
    """
    names = names_of(path)
    hint = "--target NAME, one of these, or a table that has it" if names else "a first line that names the columns"
    return DataError(f"a column {target!r} in {path}, the --target", f"columns {', '.join(names[:9])}", hint)


def write_table(path: Path, columns: dict[str, Any]) -> None:
    """A table with a name for each column: CSV, each number with as many digits as it has, parquet, or arrays.

    Args:
        path: Where to; ``.npz`` and ``.parquet`` are these, everything else is CSV.
        columns: Arrays of one length by name. One of several axes is a column for each entry of an example, ``x[0,1]``;
            ``.npz`` keeps it as it is.

    Raises:
        ConfigError: If ``pyarrow``, for ``.parquet``, is not installed.
    """
    if path.suffix == ".npz":
        with replacing(path) as draft, draft.open("wb") as file:
            np.savez(file, **columns)
        return
    flat = dict[str, np.ndarray]()
    for name, values in columns.items():
        flat |= _apart(name, np.asarray(values))
    if path.suffix == ".parquet":
        arrow, parquet = _parquet()
        with replacing(path) as draft:
            parquet.write_table(arrow.table(flat), draft)
        return
    with replacing(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(flat)
        writer.writerows(zip(*(values.tolist() for values in flat.values()), strict=True))


def check_ending(path: Path) -> None:
    """Refuses a file that is none of the tables there are.

    Args:
        path: Where a table is to be written.

    Raises:
        ConfigError: If its name ends otherwise, or a package is missing.
    """
    if path.suffix not in (".csv", ".npz", ".parquet"):
        raise ConfigError(
            "a file that ends in .csv, .parquet or .npz",
            f"{path}",
            f"--out {path.parent / path.stem}.csv" if path.name else "--out predictions.csv",
        )
    if path.suffix == ".parquet":
        _parquet()


def _apart(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of an array, one for each entry of an example."""
    flat = values.reshape(len(values), -1)
    if flat.shape[1] == 1:
        return {name: flat[:, 0]}
    entries = np.ndindex(*values.shape[1:])
    return {f"{name}[{','.join(map(str, entry))}]": flat[:, k] for k, entry in enumerate(entries)}


def _parquet() -> tuple[Any, Any]:
    """The package that reads and writes parquet.

    Raises:
        ConfigError: If it is not installed.
    """
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError("pyarrow, for parquet files", str(error), "pip install pyarrow, or CSV") from error


def names_of(path: Path) -> list[str]:
    """The columns that a table has, in their order.

    Raises:
        DataError: If it is no table.
    """
    if path.suffix in (".npz", ".parquet"):
        return _arrays(path)[0]
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            return [name.strip() for name in next(csv.reader(file), [])]
        except (UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"a CSV file with a header, or .npz, at {path}", str(error), "CSV in UTF-8") from error


def _arrays(path: Path) -> tuple[list[str], np.ndarray]:
    """Names and columns of an ``.npz`` or ``.parquet`` file."""
    if path.suffix == ".parquet":
        arrays = _of_parquet(path)
    else:
        arrays = read_arrays(path, f"arrays of numbers in {path}", "numpy.savez(x=x, y=y)")
    names = list[str]()
    parts = list[np.ndarray]()
    for name, array in arrays.items():
        lengths = {len(each) if each.ndim else 0 for each in arrays.values()}
        if array.ndim not in (1, 2) or array.dtype.kind not in "fiub" or len(lengths) > 1:
            got = f"{name} {array.dtype} {list(array.shape)}"
            raise DataError(
                f"arrays [n] or [n, p] of numbers and of one length in {path}", got, "numpy.savez(x=x, y=y)"
            )
        names += [name] if array.ndim == 1 else [f"{name}[{i}]" for i in range(array.shape[1])]
        parts.append(array.reshape(len(array), -1).astype(np.float64))
    return names, np.concatenate(parts, 1) if parts else np.zeros((0, 0))


def _of_parquet(path: Path) -> dict[str, np.ndarray]:
    """The columns of a ``.parquet`` file by name."""
    _, parquet = _parquet()
    if not path.is_file():
        raise DataError("a .parquet file", f"no file {path}", "its path")
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:  # all errors of Arrow are one of these
        raise DataError("a .parquet file", f"{path}: {error}", "writing it again") from error
    return {name: table.column(name).to_numpy() for name in table.column_names}


def _culprit(path: Path, names: list[str], places: list[int]) -> DataError | None:
    """The first entry that is no finite number."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        next(reader)
        for row in reader:
            if row and len(row) != len(names):
                got = f"{len(row)} in line {reader.line_num} of {path}"
                return DataError(f"{len(names)} entries a line, as the header has", got, "CSV with commas")
            for place in places if row else ():
                try:
                    known = math.isfinite(float(row[place]))
                except ValueError:
                    known = False
                if not known:
                    got = f"{row[place]!r:.40} in line {reader.line_num} of {path}"
                    hint = (
                        "leaving such rows out, a number for each word, or a fit with --columns that has no such column"
                    )
                    return DataError(f"finite numbers in column {names[place]!r}", got, hint)
    return None
