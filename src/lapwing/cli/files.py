"""Inputs and targets from files: arrays, tables, folders of images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.cli.table import names_of, no_target, read_table
from lapwing.ground.arrays import read_arrays
from lapwing.ground.errors import ConfigError, DataError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif", ".webp")
"""How the names of images end."""

TABLES = (".csv", ".parquet")
"""How the names of tables end."""


def read_data(source: str, *, target: str, law: str, model: Any, inputs_alone: bool = False) -> Any:
    """Inputs and targets of a file, ``(x, y)``, or the inputs alone where it has no targets and may have none.

    Args:
        source: An ``.npz`` of ``x`` and ``y``, a table, or a folder of images.
        target: The column of a table that is predicted.
        law: What targets are; see ``as_targets``.
        model: The network, whose dtype inputs take.
        inputs_alone: Whether targets may be absent.

    Raises:
        DataError: If there is no such file, it holds something else, or it has no targets.
        ConfigError: If it is none of these kinds.
    """
    path = Path(source)
    if not path.exists():
        hint = "its path, or module:function"
        raise DataError("data: an .npz, .csv or .parquet file, or a folder of images", f"no file {path}", hint)
    if path.is_dir():
        x, y = read_images(path)
    elif path.suffix == ".npz":
        x, y = _of_arrays(path)
    elif path.suffix in TABLES:
        x, y = _of_table(path, target)
    else:
        raise ConfigError("an .npz, .csv or .parquet file, or a folder of images", f"{path}", "numpy.savez(x=x, y=y)")
    inputs = torch.as_tensor(x)
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    if inputs.is_floating_point():
        inputs = inputs.to(torch.get_default_dtype() if parameter is None else parameter.dtype)
    if y is None and not inputs_alone:
        raise _without_targets(path, target)
    if y is None:
        return inputs
    return inputs, as_targets(torch.as_tensor(y), law, like=inputs)


def _without_targets(path: Path, target: str) -> DataError:
    """What to say of a file that has inputs alone."""
    if path.is_dir():
        return DataError(
            f"a folder in {path} for each class", "images alone", "a folder named as the class around them"
        )
    if path.suffix == ".npz":
        return DataError(f"an array y of targets in {path}", "x alone", "numpy.savez(x=x, y=y)")
    return no_target(path, target)


def names_in(source: str, target: str) -> dict[str, list[str]]:
    """By which names the numbers of a file go: the columns of inputs of a table, the classes of a folder of images.

    Args:
        source: As for ``read_data``; of other kinds there are none.
        target: The column of a table that is predicted.
    """
    path = Path(source)
    if path.is_dir():
        classes = [each.name for each in _classes(path)]
        return {"classes": classes} if classes else {}
    if path.suffix in TABLES and path.is_file():
        return {"columns": [name for name in names_of(path) if name != target]}
    return {}


def check_names(source: str, target: str, noted: Mapping[str, Any]) -> None:
    """Refuse data whose numbers go by other names than those that a posterior was fitted to.

    Args:
        source: As for ``read_data``.
        target: The column of a table that is predicted.
        noted: Names of the training data, as ``names_in`` tells them.

    Raises:
        DataError: If columns are others or in another order, or classes are others: their numbers mean something else.
    """
    for kind, names in names_in(source, target).items():
        if kind in noted and list(noted[kind]) != names:
            hint = f"the same {kind} in the same order"
            raise DataError(
                f"the {kind} of the training data, {', '.join(noted[kind])}", f"{', '.join(names)} in {source}", hint
            )


def as_targets(values: Tensor, law: str, *, like: Tensor) -> Tensor:
    """Targets as a likelihood takes them: classes as whole numbers, others a column an output.

    Args:
        values: As a file has them.
        law: What they are; ``"auto"`` takes whole numbers for classes.
        like: The inputs, whose dtype real targets take.

    Raises:
        DataError: If classes are no whole numbers.
    """
    whole = not values.is_floating_point() or bool((values == values.round()).all())
    if law == "categorical" and not whole:
        first = float(values[values != values.round()][0])
        raise DataError(
            "classes, whole numbers from 0", f"a target {first:g}", "--likelihood gaussian for real targets"
        )
    if law == "categorical" or (law == "auto" and whole):
        return values.long()
    real = values.to(like.dtype if like.is_floating_point() else torch.get_default_dtype())
    return real[:, None] if real.ndim == 1 else real


def _of_arrays(path: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """The arrays ``x`` and, where there is one, ``y``."""
    hint = "numpy.savez(x=x, y=y)"
    arrays = read_arrays(path, f"arrays x and y in {path}", hint)
    if "x" not in arrays:
        raise DataError(f"an array x of inputs in {path}", ", ".join(arrays) or "none", hint)
    x = arrays["x"]
    y = arrays.get("y")
    for name, array in (("x", x), ("y", y)):
        if array is not None and (array.dtype.kind not in "fiub" or array.itemsize > 8 or not array.ndim):
            raise DataError(f"numbers in {name} of {path}", f"{array.dtype} {list(array.shape)}", hint)
    if y is not None and len(y) != len(x):
        raise DataError(f"a target for each of the {len(x)} inputs in {path}", f"{len(y)}", hint)
    return _native(x), None if y is None else _native(y)


def _native(array: np.ndarray) -> np.ndarray:
    """The same numbers in the byte order of this machine, which torch asks for."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _of_table(path: Path, target: str) -> tuple[np.ndarray, np.ndarray | None]:
    """The columns of a table: all but the target for inputs, and the target where there is one."""
    names = names_of(path)
    inputs = [name for name in names if name != target]
    table = read_table(path, [*inputs, target] if target in names else inputs)
    return (table[:, :-1], table[:, -1]) if target in names else (table, None)


def read_images(folder: Path) -> tuple[Float[Tensor, "n c h w"], Tensor | None]:
    """Images in [0, 1], and as classes the folders they are in, in the order of their names; ``None`` without folders.

    Args:
        folder: Holds a folder for each class, or images; folders whose names begin with a dot are none.

    Raises:
        DataError: If there are none, or they differ in size, or one cannot be read.
        ConfigError: If ``pillow`` is not installed.
    """
    classes = _classes(folder)
    found = list[tuple[Path, int]]()
    for label, place in enumerate(classes or [folder]):
        images = sorted(each for each in place.iterdir() if each.suffix.lower() in PICTURES)
        found += [(each, label) for each in images]
    if not found:
        raise DataError(f"images in {folder}, or in a folder for each class", "none", f"files of {', '.join(PICTURES)}")
    pictures = [_image(path) for path, _ in found]
    shape = pictures[0].shape
    other = next((k for k, picture in enumerate(pictures) if picture.shape != shape), None)
    if other is not None:
        got = f"{found[other][0]} of {list(pictures[other].shape)}"
        expected = f"images of one size and as many colours, {list(shape)} as {found[0][0]} has"
        raise DataError(expected, got, "resizing them, or a loader from module:function")
    labels = torch.tensor([label for _, label in found])
    return torch.from_numpy(np.stack(pictures)).movedim(-1, 1), labels if classes else None


def _classes(folder: Path) -> list[Path]:
    """The folders of a folder of images, a class each."""
    return sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))


def _image(path: Path) -> Float[np.ndarray, "h w c"]:
    """The numbers of an image in [0, 1], float32."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigError("pillow, to read images", str(error), "pip install pillow") from error
    try:
        with Image.open(path) as image:
            mode = image.mode
            deep = mode.startswith("I;16") or (mode == "I" and image.format == "PNG")  # older pillow has these as I
            gray = mode in ("1", "L", "LA")
            pixels = np.asarray(image if deep else image.convert("L" if gray else "RGB"))
    except (OSError, ValueError) as error:
        raise DataError("images that can be read", f"{path}: {error}", "leaving it out") from error
    if mode in ("I", "F") and not deep:
        hint = "a loader from module:function, which knows their scale"
        raise DataError("images of 8 or 16 bits", f"{path} of 32", hint)
    values = pixels.astype(np.float32) / np.float32(65535 if deep else 255)
    return values[..., None] if values.ndim == 2 else values
