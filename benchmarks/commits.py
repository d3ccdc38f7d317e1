"""Seconds of this tree beside those of an earlier commit, in turns of fresh processes on one machine.

    python -m benchmarks.commits --before COMMIT --json FILE [--rounds 3] [--only TEXT]

Each work runs in a process of its own, once with the library as it was and once as it is, and so on in turns; the rows
have the medians. Rows whose name ends in "/g" compare with one forward and backward pass over the same data instead,
those in "/backpack" with BackPACK's Kronecker factors.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.command import Setting, Study, main
from benchmarks.data import Pair
from benchmarks.problems import PROBLEMS, batches, gradient
from benchmarks.report import ROOT, Row, beside, timed

Timed = dict[str, float]


def problem(name: str, images: int) -> tuple[nn.Module, Pair]:
    """The LeNet or the ResNet-20 as it is initialised, with so many generated images, the same in every process."""
    return PROBLEMS[name].model(None), PROBLEMS[name].data(None, images, 1).train


def laplace(structure: str, options: Mapping[str, Any] | None = None, **kinds: str) -> Any:
    """A recipe of the library that this process runs, by the names of its parts."""
    import lapwing as lw  # here, because the process that starts the others has neither tree's

    parts = {key: getattr(lw, kind)() for key, kind in kinds.items()}
    return lw.Laplace(lw.Categorical(), structure=getattr(lw, structure)(**(options or {})), **parts)


def products(name: str, images: int, columns: int) -> Timed:
    """A product with the Gauss-Newton matrix: the median of five after a first one."""
    curvature = laplace("MatrixFree").fit(*problem(name, images)).problem.curvature
    block = torch.randn(curvature.shape[0], columns)
    return {"seconds": again(lambda: curvature @ block, 5)}


def kfac(name: str, images: int, curvature: str) -> Timed:
    """A KFAC fit: the first of the process, and the median of three more."""
    model, pair = problem(name, images)
    fit = partial(laplace("KFAC", curvature=curvature).fit, model, pair)
    return {
        "fresh": timed(fit)[1],
        "seconds": again(fit, 3),
        "g": again(partial(gradient, model, batches(*pair, 100)), 3),
    }


def predict(name: str, images: int) -> Timed:
    """A prediction of all images with KFAC."""
    model, (x, y) = problem(name, images)
    posterior = laplace("KFAC").fit(model, (x[:100], y[:100]))
    return {
        "seconds": again(lambda: posterior.predict(x), 3),
        "g": again(lambda: gradient(model, batches(x, y, 100)), 3),
    }


def em(images: int, steps: int) -> Timed:
    """A step of EM with 16 draws on the LeNet."""
    import lapwing as lw

    posterior = laplace("Sampled", {"samples": 16}).fit(*problem("lenet", images))
    return {"seconds": timed(lambda: lw.tune(posterior, lw.EM(steps=steps)))[1] / steps}


def backpack(images: int) -> Timed:
    """BackPACK's Kronecker factors of the LeNet's exact Gauss-Newton matrix: the first of the process, and more."""
    from backpack import backpack as extended
    from backpack import extend
    from backpack.extensions import KFLR

    model, pair = problem("lenet", images)
    model, loss = extend(model), extend(nn.CrossEntropyLoss(reduction="sum"))

    def factors() -> None:
        for x, y in batches(*pair, 100):
            with extended(KFLR()):
                loss(model(x), y).backward()
            model.zero_grad()

    return {"fresh": timed(factors)[1], "seconds": again(factors, 3)}


WORKS: dict[str, Callable[[], Timed]] = {
    **{f"lenet/product/{k}": lambda k=k: products("lenet", 500, k) for k in (1, 2, 4, 8, 32)},
    **{f"resnet20/product/{k}": lambda k=k: products("resnet20", 100, k) for k in (1, 2, 8, 32)},
    "lenet/kfac/GGN": lambda: kfac("lenet", 2000, "GGN"),
    "resnet20/kfac/GGN": lambda: kfac("resnet20", 200, "GGN"),
    "resnet20/kfac/MCFisher": lambda: kfac("resnet20", 200, "MCFisher"),
    "resnet20/kfac/predict": lambda: predict("resnet20", 256),
    "lenet/em": lambda: em(500, 3),
    "backpack": lambda: backpack(2000),
}
"""What is timed, by name."""


def again(work: Callable[[], object], times: int) -> float:
    """Median seconds after a first time."""
    work()
    return statistics.median(timed(work)[1] for _ in range(times))


def turns(name: str, trees: dict[str, Path], rounds: int) -> dict[str, Timed]:
    """Medians of a work for each tree, run in turns in fresh processes."""
    found: dict[str, list[Timed]] = {tree: [] for tree in trees}
    for _ in range(rounds):
        for tree, path in trees.items():
            paths = {"PYTHONPATH": f"{path / 'src'}{os.pathsep}{ROOT}", "OMP_WAIT_POLICY": "PASSIVE"}
            command = [sys.executable, "-m", "benchmarks.commits", "--child", name]
            done = subprocess.run(command, cwd=ROOT, env=os.environ | paths, capture_output=True, text=True, check=True)
            found[tree].append(json.loads(done.stdout.splitlines()[-1]))
    return {tree: {key: statistics.median(one[key] for one in each) for key in each[0]} for tree, each in found.items()}


def rows(setting: Setting) -> Iterator[Row]:
    """Every work's seconds now and then, and beside a gradient or BackPACK."""
    before, rounds = setting.more["before"], 1 if setting.quick else setting.seeds
    texts = setting.only or (("lenet/product/1",) if setting.quick else ("",))
    names = [name for name in WORKS if name != "backpack" and any(text in name for text in texts)]
    note = f"medians of {rounds} processes, in turns"
    with earlier(before) as tree:
        trees = {"before": tree, "after": ROOT}
        for name in names:
            found = turns(name, trees, rounds)
            now, then = found["after"], found["before"]
            yield beside(name, "seconds", now["seconds"], then["seconds"], f"lapwing at {before}", note)
            if "g" in now:
                yield beside(f"{name}/g", "seconds", now["seconds"], now["g"], "a gradient of the same data", note)
            if name == "lenet/kfac/GGN":
                peer = turns("backpack", {"after": ROOT}, rounds)["after"]
                yield beside(f"{name}/fresh", "seconds", now["fresh"], then["fresh"], f"lapwing at {before}", note)
                for key, end in {"fresh": "/fresh", "seconds": ""}.items():
                    yield beside(f"{name}{end}/backpack", "seconds", now[key], peer[key], "BackPACK KFLR", note)


@contextmanager
def earlier(commit: str) -> Iterator[Path]:
    """A working tree of a commit, while it is needed."""
    with tempfile.TemporaryDirectory() as scratch:
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", scratch, commit], check=True, capture_output=True)
        try:
            yield Path(scratch)
        finally:
            subprocess.run([*git, "remove", "--force", scratch], check=True)


STUDY = Study(rows, seeds=3, options={"before": ("HEAD~1", "the commit to compare with")})

if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--child"]:
        warnings.simplefilter("ignore")
        sys.stdout.write(json.dumps(WORKS[sys.argv[2]]()))
    else:
        main({"commits": STUDY})
