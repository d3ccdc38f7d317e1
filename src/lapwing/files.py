"""Files of tensors that are there whole, or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from lapwing.errors import ConfigError


def check_directory(path: Path) -> None:
    """Refuses a file in a directory that does not exist.

    Raises:
        ConfigError: Naming it.

    Example:
        >>> check_directory(Path("posterior.safetensors"))
    """
    if not path.parent.is_dir():
        raise ConfigError("a directory that exists", f"'{path.parent}'", "path.parent.mkdir(parents=True)")


def write_whole(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file in one step: whatever happens, ``path`` holds the old file or the whole new one.

    Args:
        path: Where to; a file already there is replaced.
        tensors: Contiguous tensors on the CPU, no two in one storage.
        metadata: Text.

    Raises:
        ConfigError: If the directory does not exist.
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
