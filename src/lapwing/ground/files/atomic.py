"""Files that are there whole, or not at all."""

from __future__ import annotations

import glob
import json
import math
import os
import platform
import shutil
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from safetensors.torch import save_file
from torch import Tensor

from lapwing.ground.errors import ConfigError, check_kind

HOST = f"{zlib.crc32(platform.node().encode()):08x}"
"""This machine, in names of files that are not whole yet."""


def file_at(path: object) -> Path:
    """The path of a file, from what a user gave for it.

    Raises:
        ConfigError: If it is neither a string nor a path.

    Example:
        >>> file_at("posterior.safetensors").suffix
        '.safetensors'
    """
    check_kind("the path", path, (str, os.PathLike), "'posterior.safetensors'")
    return Path(cast("str | os.PathLike[str]", path))


def check_directory(path: Path) -> None:
    """Refuses a file in a directory that does not exist, and a directory in place of a file.

    Raises:
        ConfigError: Naming it.

    Example:
        >>> check_directory(Path("posterior.safetensors"))
    """
    if not path.parent.is_dir():
        raise ConfigError("a directory that exists", f"'{path.parent}'", "path.parent.mkdir(parents=True)")
    if path.is_dir():
        raise ConfigError("the path of a file", f"the directory '{path}'", "path / 'posterior.safetensors'")


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A file to write in place of another: at the end, and only if all went well, it takes the name ``path``.

    Args:
        path: Where to; a file already there is replaced, by one that any new file would be readable to.

    Raises:
        ConfigError: If the directory does not exist, or the path is one.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "words"
        >>> with replacing(path) as draft:
        ...     written = draft.write_text("whole")
        >>> path.read_text(), [file.name for file in path.parent.iterdir()]
        ('whole', ['words'])
    """
    check_directory(path)
    remove_leftovers(path)
    own = f".{path.name}.{HOST}-{os.getpid()}-"  # what safetensors writes beside the file while it writes goes with it
    with TemporaryDirectory(prefix=own, dir=path.parent, ignore_cleanup_errors=True) as folder:
        temporary = Path(folder) / "whole"
        temporary.touch()
        mode = temporary.stat().st_mode  # what any new file gets here: safetensors may make one only its owner can read
        yield temporary
        temporary.chmod(mode)
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.replace(path)


def write_json(results: object, path: Path) -> None:
    """Writes results as JSON in one step, numbers that are not finite as ``null``; the folder is made if need be.

    Args:
        results: Mappings, lists, text and numbers.
        path: Where to; a file already there is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(as_json(results), indent=1, ensure_ascii=False, allow_nan=False)
    with replacing(path) as draft:
        draft.write_text(text + "\n", encoding="utf-8")


def as_json(value: Any) -> Any:
    """What JSON can hold of a value.

    Example:
        >>> as_json({"runs": (1.0, float("inf"))})
        {'runs': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_whole(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file in one step: whatever happens, ``path`` holds the old file or the whole new one.

    Args:
        path: Where to; a file already there is replaced.
        tensors: Contiguous tensors on the CPU, no two in one storage.
        metadata: Text.

    Raises:
        ConfigError: If the directory does not exist, or the path is one.
    """
    with replacing(path) as draft:
        save_file(dict(tensors), draft, metadata=dict(metadata))


def remove_leftovers(path: Path) -> None:
    """Removes what processes of this machine that are no more, killed while they wrote this file, left beside it."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{HOST}-*"):
        process = left.name.rpartition(f".{HOST}-")[2].partition("-")[0]
        if process.isdecimal() and not running(int(process)):
            shutil.rmtree(left, ignore_errors=True)


def running(process: int) -> bool:
    """Whether there is such a process, or no way to know.

    Example:
        >>> running(os.getpid())
        True
    """
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
