"""The command line: ``lapwing --help`` lists what there is.

``fit``, ``evaluate`` and others take ``module:function``, a function of yours without arguments that returns what there
is to work on; see ``networks``. The module is looked for in the current folder too. What a command writes goes to the
folder ``--out``, by default ``runs/`` and its name, and never over what an earlier run has left there, but for
``compare``, which goes on with its own. A command is imported when it is asked for: help comes without torch.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import logging
import sys
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lapwing.cli.say import say
from lapwing.cli.words import COMMANDS, Command, help_of, meant

OWN = 1
"""Exit code of an error in the user's own code."""

BAD = 2
"""Exit code of wrong input."""

INTERRUPTED = 130
"""Exit code of a run that was interrupted."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; an error of lapwing is one line on stderr and exit code 2, one of your own code exit code 1.

    Args:
        arguments: What was typed; ``None`` takes ``sys.argv``.
    """
    typed = list(sys.argv[1:] if arguments is None else arguments)
    group = typed[0] if typed[:1] in (["gp"], ["ct"]) else ""
    words = typed[1:] if group else typed
    name = f"{group} {words[0]}".strip() if words else group
    if not words or words[0] in ("-h", "--help"):
        say(help_of(group))
        sys.exit(0)
    if words[0] == "--version":
        from lapwing.ground.version import installed

        say(f"lapwing {installed()}")
        sys.exit(0)
    if name not in COMMANDS:
        say(f"lapwing: {meant(name, group)}", sys.stderr)
        sys.exit(BAD)
    with _surroundings():
        code = _run(name, COMMANDS[name], words[1:])
    if code:
        sys.exit(code)


@contextlib.contextmanager
def _surroundings() -> Generator[None]:
    """Modules of the current folder, logged lines and short warnings, while a command runs."""
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("lapwing").setLevel(logging.INFO)
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, category, *_: f"{category.__name__}: {message}\n"
    sys.path.insert(0, str(Path.cwd()))  # as python -m has it, as long as the user's code may import
    try:
        yield
    finally:
        sys.path.pop(0)
        warnings.formatwarning = before


def _run(name: str, command: Command, words: list[str]) -> int:
    """Run one command, and the exit code of it."""
    as_json = "--json" in words
    whole = "--traceback" in words
    words = [word for word in words if word not in ("--json", "--traceback")]
    try:
        call = _parsed(name, command, _configured(name, words))
        if not as_json:
            return _code(call())
        with contextlib.redirect_stdout(sys.stderr):
            told = call()
        say(json.dumps(told, default=str))
        return _code(told)
    except KeyboardInterrupt:
        say("lapwing: interrupted", sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if whole:
            raise
        return _failed(error)


def _failed(error: Exception) -> int:
    """Say an error in one line, and the exit code of it; what is a mistake of lapwing's goes on as it is.

    Raises:
        Exception: The error, where it is neither lapwing's own word nor an error of a file or of the user's code.
    """
    from lapwing.cli.own_code import place_of, told
    from lapwing.ground.errors import LapwingError

    if isinstance(error, LapwingError):
        say(f"lapwing: {error}", sys.stderr)
        return BAD
    place = place_of(error)
    if place is not None:
        say(f"lapwing: {told(error, place)}", sys.stderr)
        return OWN
    if isinstance(error, OSError):
        file = error.filename or "a file"
        said = error.strerror or str(error)
        say(f"lapwing: Expected {file} to be read or written. Got {said!r}. Try another path.", sys.stderr)
        return BAD
    raise error


def _code(told: Any) -> int:
    """The exit code that a command asks for, 0 for most."""
    return int(told.get("exit_code", 0)) if isinstance(told, Mapping) else 0


def _parsed(name: str, command: Command, words: list[str]) -> Callable[[], Any]:
    """What was typed as a call of the command's function; what cannot be is one line, and the end."""
    try:
        import tyro
    except ImportError:
        sys.exit(
            "The command line needs tyro. Try pip install '.[cli]' in the sources of lapwing, or pip install tyro."
        )
    module = importlib.import_module(f"lapwing.cli.{command.module}")
    function: Callable[..., Any] = getattr(module, command.function)

    @functools.wraps(function)
    def bound(*args: Any, **options: Any) -> Callable[[], Any]:
        return functools.partial(function, *args, **options)

    told = io.StringIO()
    prog = f"lapwing {name}"
    about = f"{(function.__doc__ or '').split('Args:')[0].rstrip()}\n\nExample: {command.example}\n\n{ALL}"
    try:
        with contextlib.redirect_stderr(told):
            return tyro.cli(bound, prog=prog, description=about, args=words, config=(tyro.conf.OmitArgPrefixes,))
    except SystemExit as ended:
        if ended.code in (0, None):
            raise
        say(f"lapwing: {_sentence(told.getvalue())} Try {prog} --help.", sys.stderr)
        sys.exit(BAD)


ALL = (
    "--json, of every command, prints the result as one JSON object on stdout and the words on stderr; --config FILE "
    "takes options from a TOML file, which those typed go before; --traceback shows where an error comes from."
)
"""What all commands take."""


def _sentence(box: str) -> str:
    """What a box of tyro's says before its first rule, on one line.

    Where stdout is not in UTF-8 there is no box: the title stands alone, and rules of hyphens are above and below.
    """
    lines = [line.strip("│ ") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    rules = [k for k, line in enumerate(lines) if line and not line.strip("─-")]
    titled = rules[:1] == [1] and "╭" not in box
    first = 2 if titled else 0
    last = next((k for k in rules if k >= first), len(lines))
    said = " ".join(" ".join(lines[first:last]).split())
    return said if said.endswith(".") else f"{said}."


def _configured(name: str, words: list[str]) -> list[str]:
    """What was typed, with the options of ``--config FILE`` before it: of what is given twice the last one holds.

    Raises:
        ConfigError: If there is no such file, or it is no TOML of options.
    """
    place = next((k for k, word in enumerate(words) if word == "--config" or word.startswith("--config=")), None)
    if place is None:
        return words
    from lapwing.cli.toml import options_of

    own = words[place].partition("=")
    file = own[2] if own[1] else "".join(words[place + 1 : place + 2])
    rest = words[:place] + words[place + (1 if own[1] else 2) :]
    return [*_positional(rest), *options_of(Path(file), name), *_after(rest)]


def _positional(words: list[str]) -> list[str]:
    """The words before the first option."""
    return words[: _first(words)]


def _after(words: list[str]) -> list[str]:
    """The first option and all that follows."""
    return words[_first(words) :]


def _first(words: list[str]) -> int:
    """Where the first option is."""
    return next((k for k, word in enumerate(words) if word.startswith("--")), len(words))
