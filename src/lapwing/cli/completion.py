"""Completion of what is typed in a shell."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any, Literal, get_type_hints

from lapwing.cli.say import say
from lapwing.cli.words import COMMANDS

SCRIPT = """\
_lapwing() {
  local word="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}" options
  case "$command" in gp|ct) command="$command ${COMP_WORDS[2]}";; esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "COMMANDS" -- "$word")); return
  fi
  if [ "$COMP_CWORD" -eq 2 ] && [ "${COMP_WORDS[1]}" = gp ]; then
    COMPREPLY=($(compgen -W "GP" -- "$word")); return
  fi
  if [ "$COMP_CWORD" -eq 2 ] && [ "${COMP_WORDS[1]}" = ct ]; then
    COMPREPLY=($(compgen -W "CT" -- "$word")); return
  fi
  case "$command" in
CASES
  esac
  case "$word" in
    -*) COMPREPLY=($(compgen -W "$options --json --config --help" -- "$word"));;
    *) COMPREPLY=($(compgen -f -- "$word"));;
  esac
}
complete -o filenames -F _lapwing lapwing
"""


def completion(shell: Literal["bash", "zsh"], /) -> dict[str, Any]:
    """Print a script that completes commands and options; evaluate it where the shell starts.

    Args:
        shell: Which shell; for zsh the script goes through its bashcompinit.
    """
    first = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n" if shell == "zsh" else ""
    script = first + script_of()
    say(script)
    return {"shell": shell, "script": script}


def script_of() -> str:
    """The script for bash, which zsh runs too."""
    words = list(dict.fromkeys(name.split()[0] for name in COMMANDS))
    within = {group: [name.split()[1] for name in COMMANDS if name.startswith(f"{group} ")] for group in ("gp", "ct")}
    cases = [f'    "{name}") options="{" ".join(options_of(name))}";;' for name in COMMANDS]
    script = SCRIPT.replace("COMMANDS", " ".join(words)).replace("CASES", "\n".join(cases))
    return script.replace("GP", " ".join(within["gp"])).replace("CT", " ".join(within["ct"]))


def options_of(name: str) -> list[str]:
    """The options of a command, those of its dataclasses among them.

    Args:
        name: What is typed.
    """
    command = COMMANDS[name]
    function = getattr(importlib.import_module(f"lapwing.cli.{command.module}"), command.function)
    hints = get_type_hints(function)
    found = list[str]()
    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if dataclasses.is_dataclass(kind):
            found += [field.name for field in dataclasses.fields(kind)]
        elif parameter.kind is parameter.KEYWORD_ONLY:
            found.append(parameter.name)
    return [f"--{each.replace('_', '-')}" for each in found]
