"""Options from a TOML file: the names and values that a command line takes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from lapwing.cli.words import COMMANDS
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
        ConfigError: If there is no such file, or it is no TOML, or holds what cannot be typed, or a table of no
            command.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        said = f"{path}: {error.strerror}" if isinstance(error, OSError) else f"{path}: {error}"
        raise ConfigError("a TOML file of options for --config", said, HINT) from error
    tables = _tables(content)
    strange = [name for name, table in tables.items() if name not in COMMANDS or not isinstance(table, dict)]
    if strange:
        got = ", ".join(f"{name.replace(' ', '.')!r}" for name in strange)
        raise ConfigError(f"tables named as commands, [fit] or [gp.fit], in {path}", got, "another name for it")
    own = tables.get(command, {})
    common = {name: value for name, value in content.items() if not isinstance(value, dict)}
    typed = list[str]()
    for name, value in (common | own).items():
        typed += _option(name, value, path)
    return typed


def _tables(content: dict[str, Any]) -> dict[str, Any]:
    """The tables of a file by what is typed; of ``[gp]`` and ``[ct]`` all they hold, which should be tables."""
    found = dict[str, Any]()
    for name, value in content.items():
        if isinstance(value, dict) and name in ("gp", "ct"):
            found |= {f"{name} {word}": each for word, each in value.items()}
        elif isinstance(value, dict):
            found[name] = value
    return found


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
