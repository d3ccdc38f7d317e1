"""One file: named tensors and a JSON header, sealed against damage. Nothing here knows what they stand for.

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

from lapwing.ground.data.inputs import bits
from lapwing.ground.errors import DataError
from lapwing.ground.files.atomic import file_at, write_whole
from lapwing.ground.precision import moved

DEEPEST = 64
"""Lists and objects within each other in a header, at most."""

Json: TypeAlias = dict[str, Any]
"""What JSON calls an object."""


@final
@dataclass(frozen=True)
class Tensors:
    """Tensors of one file by name, each contiguous on the CPU, no two in one storage, as safetensors demands.

    A tensor whose axes lie in another order in memory (channels last) comes back in that order: kernels then take the
    same path and give the same bits.

    Example:
        >>> tensors = Tensors()
        >>> spec = tensors.put("w", torch.tensor([[1.0, 2.0], [3.0, 4.0]]).mT)
        >>> spec, tensors.get(spec).tolist()
        ({'tensor': 'w', 'dtype': 'float32', 'axes': [1, 0]}, [[1.0, 3.0], [2.0, 4.0]])
    """

    named: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def put(self, name: str, value: Tensor) -> Json:
        """Takes in a tensor, whole numbers in 32 bits where they fit; returns what the header needs to find it."""
        axes = sorted(range(value.ndim), key=lambda axis: -value.stride(axis))
        kept = value.detach().permute(axes).contiguous().cpu()
        small = kept.dtype == torch.int64 and bool((kept == kept.int()).all())
        kept = kept.int() if small else kept
        place = kept.untyped_storage().data_ptr()
        shared = any(other.untyped_storage().data_ptr() == place for other in self.named.values())
        self.named[name] = kept.clone() if shared else kept
        order = {} if axes == sorted(axes) else {"axes": axes}
        return {"tensor": name, "dtype": _name(value.dtype)} | order

    def get(self, spec: Any, device: torch.device | str = "cpu") -> Tensor:
        """The tensor that gave ``spec``, on a device.

        Raises:
            DataError: If there is none.
        """
        name = spec.get("tensor") if isinstance(spec, dict) else None
        if not isinstance(name, str) or name not in self.named:
            raise DataError("the name of a tensor of the file", f"{spec!r:.60}", "saving it again")
        value = moved(self.named[name], device)
        axes = spec.get("axes")
        dtype = spec.get("dtype")
        if value.dtype == torch.int32 and dtype == "int64":
            value = value.long()
        if _name(value.dtype) != dtype:
            raise DataError(f"the tensor {name:.60} in {dtype!s:.20}", _name(value.dtype), "saving it again")
        if axes is None:
            return value
        whole = isinstance(axes, list) and all(type(axis) is int for axis in axes)
        if not whole or sorted(axes) != list(range(value.ndim)):
            raise DataError(f"{value.ndim} axes in some order", f"{axes!r:.60}", "saving it again")
        return value.permute([axes.index(axis) for axis in range(len(axes))])

    @property
    def digest(self) -> str:
        """SHA-256 of names, shapes, dtypes and values."""
        total = hashlib.sha256()
        for name, value in sorted(self.named.items()):
            total.update(f"{name}{list(value.shape)}{value.dtype}".encode())
            total.update(bits(value))
        return total.hexdigest()


def _name(dtype: torch.dtype) -> str:
    """A type of numbers as a header has it."""
    return str(dtype).removeprefix("torch.")


@final
@dataclass(frozen=True)
class Archive:
    """A kind of file.

    Args:
        key: The metadata key of the header.
        format: What the header says it is.
        schema: Version of the header's layout: raised whenever a file of the older layout would be misread.
        writer: What writes such files, for messages.
        cure: What to do about a file that cannot be used, for messages.
        oldest: The oldest schema that is still read.

    Example:
        >>> Archive("lapwing", "lapwing.posterior", 1, "lapwing.save").schema
        1
    """

    key: str
    format: str
    schema: int
    writer: str
    cure: str = "copying it again, or saving it again"
    oldest: int = 1

    def write(self, path: Path, header: Json, tensors: Tensors) -> None:
        """Writes a file in one step: whatever happens, ``path`` holds the old file or the whole new one.

        Args:
            path: Where to; a file already there is replaced.
            header: Strings, numbers, lists and dicts.
            tensors: The tensors the header speaks of.

        Raises:
            ConfigError: If the directory does not exist.
        """
        body = {"format": self.format, "schema": self.schema, **header, "checksum": tensors.digest}
        write_whole(path, tensors.named, {self.key: json.dumps({"seal": seal(body), **body})})

    def header(self, path: str | PathLike[str]) -> Json:
        """The header of a file.

        Raises:
            DataError: If the file is damaged, something else, or of another schema.
            FileNotFoundError: If there is none.
        """
        with self._opened(file_at(path)) as file:
            metadata = file.metadata()
        if self.key not in (metadata or {}):
            raise DataError(
                f"a file that {self.writer} wrote", f"'{path}', a safetensors file of something else", self.cure
            )
        try:
            header: Any = json.loads(metadata[self.key])
            deep = _depth(header) > DEEPEST
        except (ValueError, RecursionError) as error:
            raise self.damaged(path, f"its header is not JSON ({error!s:.80})") from error
        if not isinstance(header, dict) or deep:
            raise self.damaged(path, f"its header is a {'tree too deep' if deep else type(header).__name__}")
        sealed = header.pop("seal", None) == seal(header)
        self._check_schema(path, header)
        if not sealed:
            raise self.damaged(path, "its header does not match its checksum")
        return header

    def tensors(self, path: Path, header: Json) -> Tensors:
        """The tensors of a file whose header was read: copies, so that the file may go.

        Raises:
            DataError: If they are damaged.
        """
        with self._opened(path) as file:
            tensors = Tensors({name: file.get_tensor(name).clone() for name in file.keys()})  # noqa: SIM118
        if tensors.digest != header.get("checksum"):
            raise self.damaged(path, "its tensors do not match their checksum")
        return tensors

    def _check_schema(self, path: str | PathLike[str], header: Json) -> None:
        """Refuses other formats, and schemas from the future or too far back."""
        schema = header.get("schema")
        if header.get("format") != self.format or type(schema) is not int:
            raise DataError(
                f"a file of format {self.format}", f"'{path}' of format {header.get('format')!s:.40}", "another path"
            )
        if not self.oldest <= schema <= self.schema:
            versions = header.get("versions")
            writer = versions.get("lapwing") if isinstance(versions, dict) else None
            named = f"{writer:.20}" if isinstance(writer, str) else "another version"
            raise DataError(
                f"a file of schema {self.oldest} to {self.schema}",
                f"'{path}' of schema {schema}, written by lapwing {named}",
                f"pip install 'lapwing>={named}'"
                if schema > self.schema
                else f"the lapwing that wrote it, or {self.cure}",
            )

    @contextmanager
    def _opened(self, path: Path) -> Generator[Any]:
        """The file, open; its own errors as ours."""
        path.open("rb").close()  # a missing or unreadable file is reported by Python, as it does for any other
        try:
            with safe_open(path, framework="pt") as file:
                yield file
        except SafetensorError as error:
            raise self.damaged(path, f"it is cut short or no safetensors file ({error})") from error

    def damaged(self, path: str | PathLike[str], how: str) -> DataError:
        """The error for a file that is not as it was written."""
        return DataError(f"a whole file that {self.writer} wrote", f"'{path}': {how}", self.cure)


def seal(header: Json) -> str:
    """SHA-256 of a header."""
    return hashlib.sha256(json.dumps(header).encode()).hexdigest()


def _depth(value: Any) -> int:
    """Lists and objects within each other."""
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 1
