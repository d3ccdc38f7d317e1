"""One file: named tensors and a JSON header, sealed against damage. Nothing here knows of posteriors or networks.

A safetensors file keeps text as text and tensors as raw numbers: opening one runs no code. All of the header is one
JSON object under one metadata key; safetensors itself keeps flat strings only, and writes several keys in any order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lapwing.errors import DataError
from lapwing.files import file_at, write_whole

Json: TypeAlias = dict[str, Any]
"""What JSON calls an object."""

KEY = "lapwing"
"""The metadata key of the header."""

FORMAT = "lapwing.posterior"

SCHEMA = 1
"""Version of the header's layout: raised whenever a file of the older layout would be misread."""


@final
@dataclass(frozen=True)
class Tensors:
    """Tensors of one file by name, each contiguous on the CPU.

    A tensor whose axes lie in another order in memory (channels last) comes back in that order: kernels then take the
    same path and give the same bits.

    Example:
        >>> tensors = Tensors()
        >>> spec = tensors.put("w", torch.tensor([[1.0, 2.0], [3.0, 4.0]]).mT)
        >>> spec, tensors.get(spec).tolist()
        ({'tensor': 'w', 'axes': [1, 0]}, [[1.0, 3.0], [2.0, 4.0]])
    """

    named: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def put(self, name: str, value: Tensor) -> Json:
        """Takes in a tensor; returns what the header needs to find it again."""
        axes = sorted(range(value.ndim), key=lambda axis: -value.stride(axis))
        self.named[name] = value.detach().permute(axes).contiguous().cpu()
        return {"tensor": name} if axes == sorted(axes) else {"tensor": name, "axes": axes}

    def get(self, spec: Json, device: torch.device | str = "cpu") -> Tensor:
        """The tensor that gave ``spec``, on a device."""
        value = self.named[spec["tensor"]].to(device)
        axes: list[int] = spec.get("axes", [])
        return value.permute([axes.index(axis) for axis in range(len(axes))]) if axes else value


def write(path: Path, header: Json, tensors: Tensors) -> None:
    """Writes a file in one step: whatever happens, ``path`` holds the old file or the whole new one.

    Args:
        path: Where to; a file already there is replaced.
        header: Strings, numbers, lists and dicts.
        tensors: The tensors the header speaks of.

    Raises:
        ConfigError: If the directory does not exist.
    """
    body = {"format": FORMAT, "schema": SCHEMA, **header, "checksum": digest(tensors.named)}
    write_whole(path, unshared(tensors.named), {KEY: json.dumps({"seal": seal(body), **body})})


def read_header(path: str | PathLike[str]) -> Json:
    """The header of a saved posterior, without its tensors and without its network.

    Args:
        path: The file.

    Returns:
        ``format``, ``schema``, ``versions``, ``posterior`` (its class), ``likelihood``, ``fitted`` (the likelihood the
        curvature was computed with), ``prior``, ``network`` (class, fingerprint, parameters, uncertain weights),
        ``survey``, ``totals`` (examples, nll in nats, ...), ``trace``, and what the class holds, such as ``curvature``.
        Long vectors are references ``{"tensor": name}``.

    Raises:
        DataError: If the file is damaged, not lapwing's, or of a schema newer than this lapwing.
        FileNotFoundError: If there is none.

    Example:
        >>> import tempfile, lapwing as lw
        >>> from lapwing.store import read_header, save
        >>> model, x, y = torch.nn.Linear(2, 3), torch.randn(20, 2), torch.randint(0, 3, (20,))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(lw.Laplace(lw.Categorical()).fit(model, (x, y)), f"{folder}/model.safetensors")
        ...     header = read_header(f"{folder}/model.safetensors")
        >>> header["posterior"], header["prior"], header["totals"]["examples"]
        ('WeightPosterior', {'kind': 'Isotropic', 'precision': 1.0}, 20)
    """
    with opened(file_at(path)) as file:
        metadata = file.metadata()
    if KEY not in (metadata or {}):
        raise DataError(
            "a file that lapwing.save wrote",
            f"'{path}', a safetensors file of something else",
            "the path of a posterior",
        )
    try:
        header: Json = json.loads(metadata[KEY])
    except json.JSONDecodeError as error:
        raise damaged(path, f"its header is not JSON ({error})") from error
    check_schema(path, header)
    if header.pop("seal", None) != seal(header):
        raise damaged(path, "its header does not match its checksum")
    return header


def read_tensors(path: Path, header: Json) -> Tensors:
    """The tensors of a file whose header was read: copies, so that the file may go.

    Raises:
        DataError: If they are damaged.
    """
    with opened(path) as file:
        named = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    if digest(named) != header["checksum"]:
        raise damaged(path, "its tensors do not match their checksum")
    return Tensors(named)


def check_schema(path: str | PathLike[str], header: Json) -> None:
    """Refuses other formats, and schemas from the future."""
    schema = header.get("schema")
    if header.get("format") != FORMAT or not isinstance(schema, int):
        raise DataError(f"a file of format {FORMAT}", f"'{path}' of format {header.get('format')}", "another path")
    if schema > SCHEMA:
        writer = header.get("versions", {}).get("lapwing", "a newer version")
        raise DataError(
            f"a file of schema {SCHEMA} or older",
            f"'{path}' of schema {schema}, written by lapwing {writer}",
            f"pip install 'lapwing>={writer}'",
        )


@contextmanager
def opened(path: Path) -> Generator[Any]:
    """The file, open; its own errors as ours."""
    path.open("rb").close()  # a missing or unreadable file is reported by Python, as it does for any other
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise damaged(path, f"it is cut short or no safetensors file ({error})") from error


def damaged(path: str | PathLike[str], how: str) -> DataError:
    """The error for a file that is not as it was written."""
    return DataError("a whole file that lapwing.save wrote", f"'{path}': {how}", "copying it again, or saving it again")


def seal(header: Json) -> str:
    """SHA-256 of a header."""
    return hashlib.sha256(json.dumps(header).encode()).hexdigest()


def digest(named: dict[str, Tensor]) -> str:
    """SHA-256 of contiguous tensors on the CPU: names, shapes, dtypes and values."""
    total = hashlib.sha256()
    for name, value in sorted(named.items()):
        total.update(f"{name}{list(value.shape)}{value.dtype}".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def unshared(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, no two in one storage, as safetensors demands."""
    seen: set[int] = set()
    result: dict[str, Tensor] = {}
    for name, value in named.items():
        pointer = value.untyped_storage().data_ptr()
        result[name] = value.clone() if pointer in seen else value
        seen.add(pointer)
    return result
