"""Options from a TOML file: the names and values that a command line takes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from lapwing.ground.errors import ConfigError

HINT = 'lines such as structure = "kfac", in a table named as the command where several share the file'
"""What to write."""


def options_of(path: Path, command: str) -> list[str]:
    """The options of a file, as they would be typed.

    Those at the top of the file are for every command, those in a table, ``[fit]`` or ``[gp.fit]``, for that one.

    Args:
        path: The file.
        command: Such as ``fit`` or ``gp fit``.

    Raises:
        ConfigError: If there is no such file, or it is no TOML, or holds what cannot be typed.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        said = f"{path}: {error.strerror}" if isinstance(error, OSError) else f"{path}: {error}"
        raise ConfigError("a TOML file of options for --config", said, HINT) from error
    own = content
    for word in command.split():
        own = own.get(word, {}) if isinstance(own, dict) else {}
    common = {name: value for name, value in content.items() if not isinstance(value, dict)}
    typed = list[str]()
    for name, value in (common | own).items():
        typed += _option(name, value, path)
    return typed


def _option(name: str, value: Any, path: Path) -> list[str]:
    """One option and its value, or the values of a list."""
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str | int | float) for each in values):
        raise ConfigError(
            f"a text, a number, true or false, or a list of them for {name} in {path}", f"{value!r}", HINT
        )
    return [f"--{option}", *map(str, values)]
