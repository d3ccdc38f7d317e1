"""What commands there are, and what help says of them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Command:
    """A command.

    Args:
        module: Of ``lapwing.cli``, where its function is.
        function: Which makes it.
        does: What it does, a few words.
        example: How it is typed.
    """

    module: str
    function: str
    does: str
    example: str


SAVED = "runs/fit/posterior.safetensors"

COMMANDS = {
    "demo": Command("demos", "demo", "the whole way on handwritten digits and a curve with a gap", "lapwing demo"),
    "fit": Command(
        "networks",
        "fit",
        "posterior of a trained network: fit, tune, save",
        "lapwing fit mymodule:setup --structure kfac",
    ),
    "tune": Command(
        "networks",
        "tune",
        "tune a saved posterior anew",
        f"lapwing tune mymodule:setup {SAVED} --by validation",
    ),
    "evaluate": Command("networks", "evaluate", "score it on test data", f"lapwing evaluate mymodule:setup {SAVED}"),
    "predict": Command(
        "networks",
        "predict",
        "predictions with error bars, to CSV, parquet or npz",
        f"lapwing predict mymodule:model {SAVED} --inputs new.csv",
    ),
    "compare": Command(
        "comparing", "compare", "every method side by side, with a report", "lapwing compare mymodule:setup --seeds 3"
    ),
    "health": Command(
        "networks", "health", "what to know before it is relied on", f"lapwing health mymodule:setup {SAVED}"
    ),
    "diagnose": Command(
        "networks",
        "diagnose",
        "whether draws have the covariance they claim",
        f"lapwing diagnose mymodule:model {SAVED}",
    ),
    "info": Command("networks", "info", "what a saved posterior is, without its network", f"lapwing info {SAVED}"),
    "export": Command(
        "networks",
        "export",
        "a program for where lapwing is not installed",
        f"lapwing export mymodule:setup {SAVED} --out model.pt2",
    ),
    "report": Command("comparing", "report", "a page of results", "lapwing report runs/compare/results.json"),
    "gp fit": Command(
        "gp", "fit", "Gaussian process of a table: fit, tune, save", "lapwing gp fit houses.csv --target price"
    ),
    "gp predict": Command(
        "gp", "predict", "predict the rows of a table", "lapwing gp predict runs/gp/fit/posterior.safetensors new.csv"
    ),
    "ct reconstruct": Command(
        "ct", "reconstruct", "image of a scan, with error bars by --method dip", "lapwing ct reconstruct scan.mat"
    ),
    "ct propose": Command(
        "ct", "propose", "angles to measure next", "lapwing ct propose scan.npz --angles angles.txt --count 5"
    ),
    "ct demo": Command("ct", "demo", "all of it on a generated walnut", "lapwing ct demo"),
    "completion": Command(
        "completion",
        "completion",
        "completion of commands and options for bash or zsh",
        'eval "$(lapwing completion bash)"',
    ),
}
"""By what is typed."""

ABOUT = """\
Trustworthy error bars for a network that is already trained.

usage: lapwing COMMAND ...        lapwing COMMAND --help tells its arguments and options
"""

SETUP = """\
module:function is a function of yours without arguments that returns (model, train), (model, train, test), a mapping
with any of model, train, test, validation, ood, likelihood, unpack, output (of compare also shifts, methods, tunings),
or the model alone where --train, --test ... name files: .npz of x and y, a .csv or .parquet table with --target, or a
folder of images with a folder for each class. The module is looked for in the current folder too.
"""

EVERY = """\
Every command takes
  --json          one JSON object on stdout, the words on stderr
  --config FILE   options from a TOML file; those that are typed go before
  --traceback     where an error comes from, call by call

exit codes: 0 done, 1 an error of your own code, 2 wrong input, said in one line, 3 a diagnosis not passed,
130 interrupted"""

EXAMPLES = ("fit", "evaluate", "predict", "gp fit", "ct reconstruct")
"""Commands whose examples are shown."""


def help_of(group: str) -> str:
    """What ``lapwing --help`` prints, or ``lapwing gp --help``.

    Args:
        group: ``"gp"``, ``"ct"``, or "" for everything.
    """
    shown = {name: command for name, command in COMMANDS.items() if not group or name.startswith(f"{group} ")}
    width = max(len(name) for name in shown)
    lines = [f"  {name:<{width}}  {command.does}" for name, command in shown.items()]
    examples = [f"  {command.example}" for name, command in shown.items() if group or name in EXAMPLES]
    parts = [ABOUT if not group else f"usage: lapwing {group} COMMAND ...\n", "commands:", *lines, ""]
    parts += [] if group else [SETUP]
    parts += ["examples:", *examples, "", EVERY]
    parts += [] if group else ["lapwing --version tells the version."]
    return "\n".join(parts)


def meant(name: str, group: str) -> str:
    """What to say of a command that there is not.

    Args:
        name: What was typed.
        group: ``"gp"``, ``"ct"``, or "".
    """
    close = difflib.get_close_matches(name, COMMANDS, 1)
    known = [each for each in COMMANDS if each.startswith(f"{group} ")] if group else list(COMMANDS)
    hint = f"lapwing {close[0]}" if close else f"lapwing {group} --help".replace("  ", " ")
    return f"Expected a command: {', '.join(known)}. Got {name!r}. Try {hint}."
