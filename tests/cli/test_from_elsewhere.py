"""Every command as somebody else calls it: a process of its own, their module and data, their working directory."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch

import lapwing as lw
from lapwing.cli.words import COMMANDS
from lapwing.ct import Ellipses, Parallel2d, equidistant

THEIRS = """
import torch
from torch import nn


def net():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    x = torch.eye(3).repeat(8, 1)
    y = torch.arange(3).repeat(8)
    for _ in range(30):  # by hand: the optimisers of torch load its compiler, four seconds
        net.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        with torch.no_grad():
            for weight in net.parameters():
                weight -= weight.grad
    return net


def other():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))


def untrained():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))


def class_of_it():
    return nn.Linear


def divided():
    return 1 / 0


class Raises(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        raise KeyError("scale")


def raises():
    return Raises()
"""

PROCESS = Path(lw.__file__).parent.parent
"""Where a process finds lapwing, and nothing else of the repository."""

FORKS = """
import json, os, runpy, sys, traceback
import torch, lapwing.cli.comparing, lapwing.cli.ct, lapwing.cli.gp, lapwing.cli.networks, lapwing.comparison

def command(words):
    sys.argv = ["lapwing", *words]
    sys.path[0] = os.getcwd()
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    code = 0
    try:
        runpy.run_module("lapwing", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

for line in sys.stdin:
    child = os.fork()
    if not child:
        command(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""A process that has loaded torch, and has a child for each command: ``python -m lapwing`` without the wait."""

POSTERIOR = "fitted/posterior.safetensors"


@final
@dataclass(frozen=True)
class Ran:
    """A command that has ended.

    Args:
        code: Its exit code.
        out: What it wrote to stdout.
        err: What it wrote to stderr.
    """

    code: int
    out: str
    err: str


@final
@dataclass(frozen=True)
class Forks:
    """Runs commands in children of one process.

    Args:
        process: That process.
        folder: The working directory.
    """

    process: subprocess.Popen[str]
    folder: Path

    def run(self, words: str) -> Ran:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(words.split()) + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        return Ran(code, *((self.folder / name).read_text(encoding="utf-8") for name in ("out", "err")))


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(PROCESS), "OMP_NUM_THREADS": "1"}


def table(path: Path, header: str, rows: Any) -> None:
    lines = [",".join(map(str, row)) for row in rows]
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")


def no_json(word: str) -> None:
    """NaN and infinities, which Python reads and JSON lacks."""
    raise AssertionError(f"{word} is no JSON")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their working directory, with a module and files of data."""
    place = tmp_path_factory.mktemp("theirs")
    (place / "theirs.py").write_text(THEIRS, encoding="utf-8")
    random = np.random.default_rng(0)
    labels = np.arange(36) % 3
    x = np.eye(3)[labels] + 0.5 * random.normal(size=(36, 3))
    rows = [[*values, label] for values, label in zip(x.round(4).tolist(), labels.tolist(), strict=True)]
    table(place / "train.csv", "u,v,w,y", rows[:24])
    table(place / "test.csv", "u,v,w,y", rows[24:])
    table(place / "new.csv", "u,v,w", [row[:3] for row in rows[24:]])
    length = random.normal(size=16).round(4)
    table(place / "lengths.csv", "length,price", [[each, math.sin(each)] for each in length.tolist()])
    plane = Parallel2d((8, 8), equidistant(6), detector=8)
    scan = Ellipses(((1.0, 2.0, 2.0, 0.5, -1.0, 0.0),)).sinogram(plane)
    np.savez(place / "scan.npz", sinogram=scan.numpy(), angles=plane.theta.numpy())
    shown = lw.Comparison((lw.comparison.Row("KFAC", "default", ({"nll": 0.5},)),))
    (place / "results.json").write_text(json.dumps(shown.to_dict()), encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def forks(folder: Path) -> Iterator[Forks]:
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", FORKS], cwd=folder, env=environment(), **options) as process:
        yield Forks(process, folder)


WORK = {
    "fit": f"fit theirs:net --train train.csv --structure diagonal --out {POSTERIOR.partition('/')[0]}",
    "tune": f"tune theirs:net {POSTERIOR} --by evidence",
    "evaluate": f"evaluate theirs:net {POSTERIOR} --test test.csv --ood new.csv",
    "predict": f"predict theirs:net {POSTERIOR} --inputs new.csv --out new-predictions.csv",
    "compare": "compare theirs:net --train train.csv --test test.csv",
    "health": f"health theirs:net {POSTERIOR} --test test.csv",
    "diagnose": f"diagnose theirs:net {POSTERIOR}",
    "info": f"info {POSTERIOR}",
    "export": f"export theirs:net {POSTERIOR} --test new.csv --out model.pt2",
    "report": "report results.json",
    "gp fit": "gp fit lengths.csv --target price --out lengths",
    "gp predict": "gp predict lengths/posterior.safetensors lengths.csv --out predicted",
    "ct reconstruct": "ct reconstruct scan.npz --method fbp",
    "completion": "completion zsh",
}
"""What each command is asked for; those that take minutes, and their quick forms seconds, are refused below."""

LEFT = {
    "fit": POSTERIOR,
    "tune": "runs/tune/posterior.safetensors",
    "predict": "new-predictions.csv",
    "compare": "runs/compare/report.html",
    "health": "runs/health/health.html",
    "export": "model.pt2",
    "report": "report.html",
    "gp fit": "lengths/report.html",
    "gp predict": "predicted/predictions.csv",
    "ct reconstruct": "runs/ct/reconstruct/image.npy",
}
"""What each leaves behind."""


def test_every_command_works_in_a_process_of_its_own(folder: Path, forks: Forks) -> None:
    """The first of each module in an interpreter that has loaded nothing, the others in children of one that has."""
    options: dict[str, Any] = {"cwd": folder, "env": environment(), "text": True, "capture_output": True}
    started = set[str]()
    for name, words in WORK.items():
        module = COMMANDS[name].module
        if module in started:
            ran = forks.run(f"{words} --json")
            code, out, err = ran.code, ran.out, ran.err
        else:
            alone = subprocess.run([sys.executable, "-m", "lapwing", *words.split(), "--json"], **options)
            code, out, err = alone.returncode, alone.stdout, alone.stderr
        started.add(module)
        assert code == 0, (name, err)
        told = json.loads(out, parse_constant=no_json)
        assert told and isinstance(told, dict), name
        assert name not in LEFT or (folder / LEFT[name]).is_file(), name


WRONG = {
    "an unknown command": ("fti theirs:net", "Try lapwing fit"),
    "an unknown option": ("fit theirs:net --nope 3", "Unrecognized options: --nope"),
    "an unknown structure": ("fit theirs:net --structure blok", "invalid choice 'blok'"),
    "an unknown shell": ("completion tcsh", "invalid choice 'tcsh'"),
    "no such module": ("fit nothere:net --train train.csv", "No module named 'nothere'"),
    "no such function": ("fit theirs:nets --train train.csv", "Try one of its functions: "),
    "a model function that raises": ("fit theirs:divided --train train.csv", "ZeroDivisionError: division by zero"),
    "a network that raises": ("fit theirs:raises --train train.csv", "scale"),
    "a class in place of a network": ("fit theirs:class_of_it --train train.csv", "a tuple or a mapping"),
    "no such file": ("fit theirs:net --train nothere.csv", "no file nothere.csv"),
    "a broken file of arrays": ("fit theirs:net --train broken.npz", "broken.npz"),
    "numbers that are none": ("fit theirs:net --train nan.csv", "finite numbers in column 'v'. Got 'nan' in line 3"),
    "arrays that are not finite": ("fit theirs:net --train inf.npz", "finite inputs"),
    "text": ("fit theirs:net --train text.npz", "numbers in x of text.npz"),
    "too many columns": ("fit theirs:net --train wide.csv", "inputs that the network takes"),
    "no rows": ("fit theirs:net --train empty.csv", "rows below the header"),
    "no examples": ("fit theirs:net --train empty.npz", "empty"),
    "labels out of range": ("fit theirs:net --train labels.csv --structure diagonal", "from 7 to 7"),
    "a target there is not": ("fit theirs:net --train train.csv --target price", "a column 'price' in train.csv"),
    "arrays without targets": ("fit theirs:net --train inputs.npz", "an array y of targets in inputs.npz"),
    "unreadable options": ("fit theirs:net --config options.toml", "a TOML file of options"),
    "a folder that is a file": ("fit theirs:net --train train.csv --out theirs.py", "File exists"),
    "a folder in use": ("fit theirs:net --train train.csv --out fitted", "--out ANOTHER"),
    "no held-out data": (f"tune theirs:net {POSTERIOR} --by validation", "no validation"),
    "no test data": (f"evaluate theirs:net {POSTERIOR}", "no test. Try --test FILE"),
    "other columns": (f"evaluate theirs:net {POSTERIOR} --test turned.csv", "columns of the training data, u, v, w"),
    "a network of another shape": (f"evaluate theirs:other {POSTERIOR} --test test.csv", "Expected"),
    "a network of other weights": (f"health theirs:untrained {POSTERIOR} --test test.csv", "Expected"),
    "a posterior cut short": ("predict theirs:net short.safetensors --inputs new.csv", "short.safetensors"),
    "a posterior of something else": ("evaluate theirs:net process.safetensors --test test.csv", "process.safetensors"),
    "no posterior": ("diagnose theirs:net theirs.py", "theirs.py"),
    "a folder for a file": ("info .", "Expected"),
    "an ending of nothing": (f"export theirs:net {POSTERIOR} --test test.csv --out model.txt", ".pt2"),
    "no level": (f"predict theirs:net {POSTERIOR} --inputs new.csv --level 2", "level between 0 and 1"),
    "no methods": ("compare theirs:net --train train.csv --test new.csv", "new.csv"),
    "no such reference": (
        "compare theirs:net --train train.csv --test test.csv --reference ours --out other",
        "Got 'ours'. Try 'plain network', 'last layer'",
    ),
    "no results": ("report options.toml", "a JSON file of results"),
    "words in a table": ("gp fit words.csv --target price", "finite numbers in column 'town'. Got 'Bath'"),
    "no such target": ("gp fit lengths.csv --target prize", "a column 'prize' in lengths.csv"),
    "a network for a process": (f"gp predict {POSTERIOR} lengths.csv", "a Gaussian process of one output"),
    "no scan": ("ct reconstruct lengths.csv", "lengths.csv"),
    "no angles": ("ct propose scan.npz --count 0", "--count of at least 1"),
    "no seed": ("ct demo --seed -1", "--seed of at least 0"),
    "no seeds": ("demo --seeds 0", "at least one seed"),
}
"""Wrong input: what is typed, and a fragment of the sentence that says so."""


def test_a_wrong_input_is_one_sentence(folder: Path, forks: Forks) -> None:
    table(folder / "nan.csv", "u,v,w,y", [[1, 2, 3, 0], [1, "nan", 3, 1]])
    table(folder / "wide.csv", "u,v,w,more,y", [[1, 2, 3, 4, 0], [1, 2, 3, 4, 1]])
    table(folder / "empty.csv", "u,v,w,y", [])
    table(folder / "labels.csv", "u,v,w,y", [[1, 2, 3, 0], [1, 2, 4, 7]])
    table(folder / "turned.csv", "v,u,w,y", [[1, 2, 3, 0]])
    table(folder / "words.csv", "town,price", 5 * [["Bath", 2]])
    np.savez(folder / "inf.npz", x=np.array([[1, 2, np.inf]]), y=np.array([0]))
    np.savez(folder / "text.npz", x=np.array([["a", "b", "c"]]), y=np.array([0]))
    np.savez(folder / "empty.npz", x=np.zeros((0, 3)), y=np.zeros(0, dtype=int))
    np.savez(folder / "inputs.npz", x=np.zeros((2, 3)))
    (folder / "broken.npz").write_bytes((folder / "inf.npz").read_bytes()[:60])
    (folder / "options.toml").write_text("structure = kfac", encoding="utf-8")
    lw.save(lw.GP().fit((torch.zeros(4, 1), torch.arange(4.0))), folder / "process.safetensors")
    if not (folder / POSTERIOR).is_file():
        assert forks.run(WORK["fit"]).code == 0
    (folder / "short.safetensors").write_bytes((folder / POSTERIOR).read_bytes()[:600])
    others = dict[str, Ran]()
    for name, (words, fragment) in WRONG.items():
        ran = forks.run(words)
        whole = ran.err.startswith("lapwing: ") and ran.err.count("\n") == 1 and len(ran.err) < 400
        codes = (1,) if name == "a model function that raises" else (1, 2)
        if ran.code not in codes or not whole or fragment not in ran.err:
            others[name] = ran
    assert not others
    assert {words.split()[0] for words, _ in WRONG.values()} | set(WORK) >= {name.split()[0] for name in COMMANDS}
