"""Files of tensors that are there whole, or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from safetensors.torch import save_file
from torch import Tensor

from lapwing.errors import ConfigError, check_kind


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


def write_whole(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file in one step: whatever happens, ``path`` holds the old file or the whole new one.

    Args:
        path: Where to; a file already there is replaced.
        tensors: Contiguous tensors on the CPU, no two in one storage.
        metadata: Text.

    Raises:
        ConfigError: If the directory does not exist, or the path is one.
    """
    check_directory(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # what any new file gets here: safetensors may make one only its owner can read
        save_file(dict(tensors), temporary, metadata=dict(metadata))
        temporary.chmod(mode)
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
