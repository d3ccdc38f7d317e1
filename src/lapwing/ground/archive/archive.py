"""One file: named tensors and a JSON header, sealed against damage. Nothing here knows what they stand for.

A safetensors file keeps text as text and tensors as raw numbers: opening one runs no code. All of the header is one
JSON object under one metadata key; safetensors itself keeps flat strings only, and writes several keys in any order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, final

from safetensors import SafetensorError, safe_open

from lapwing.ground.archive.tensors import Json, Tensors
from lapwing.ground.archive.whole import file_at, write_whole
from lapwing.ground.errors import DataError


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
        write_whole(path, tensors.unshared, {self.key: json.dumps({"seal": seal(body), **body})})

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
            sealed = isinstance(header, dict) and header.pop("seal", None) == seal(header)
        except (ValueError, RecursionError) as error:
            raise self.damaged(path, f"its header is not JSON ({error!s:.80})") from error
        if not isinstance(header, dict):
            raise self.damaged(path, f"its header is a {type(header).__name__}")
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
        if schema > self.schema:
            versions = header.get("versions")
            writer = versions.get("lapwing") if isinstance(versions, dict) else None
            named = f"{writer:.20}" if isinstance(writer, str) else "a newer version"
            raise DataError(
                f"a file of schema {self.schema} or older",
                f"'{path}' of schema {schema}, written by lapwing {named}",
                f"pip install 'lapwing>={named}'",
            )
        if schema < self.oldest:
            raise DataError(
                f"a file of schema {self.oldest} or newer",
                f"'{path}' of schema {schema}",
                f"the lapwing that wrote it, or {self.cure}",
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
