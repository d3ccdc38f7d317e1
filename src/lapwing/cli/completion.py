"""Completion of what is typed in a shell."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, Literal

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
    -*) COMPREPLY=($(compgen -W "$options --json --config --traceback --help" -- "$word"));;
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
    """The options of a command, those of its dataclasses among them, as its source has them.

    A shell that asks at every start must not wait for torch, which importing the command would load.

    Args:
        name: What is typed.
    """
    command = COMMANDS[name]
    module = _tree(command.module)
    function = next(node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == command.function)
    found = list[str]()
    for argument in function.args.kwonlyargs:
        kind = argument.annotation
        group = _class(kind.id, module) if isinstance(kind, ast.Name) else None
        found += [argument.arg] if group is None else _fields(group)
    return [f"--{each.replace('_', '-')}" for each in found]


def _tree(module: str) -> ast.Module:
    """The source of a module of ``lapwing.cli``."""
    return ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))


def _class(name: str, module: ast.Module) -> ast.ClassDef | None:
    """A class of a module of ``lapwing.cli``, or one it imports from another; ``None`` for those of elsewhere."""
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and name in [each.name for each in node.names]:
            package, _, own = (node.module or "").rpartition(".")
            return _class(name, _tree(own)) if package == "lapwing.cli" else None
    return None


def _fields(group: ast.ClassDef) -> list[str]:
    """The fields of a dataclass."""
    named = [node.target for node in group.body if isinstance(node, ast.AnnAssign)]
    return [target.id for target in named if isinstance(target, ast.Name)]
