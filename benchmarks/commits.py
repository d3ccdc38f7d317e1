"""Seconds and memory of this tree beside those of an earlier commit, in turns of fresh processes on one machine.

    python -m benchmarks.commits --before COMMIT --json FILE [--rounds 3] [--only TEXT]

Each work runs in a process of its own, on one thread, once with the library as it was and once as it is, and so on in
turns; the rows have the medians. Seconds are those of the processor, which other processes disturb least; memory is the
peak above what the process had after its imports. Rows whose name ends in "/g" compare with one forward and backward
pass over the same data instead, those in "/backpack" with BackPACK's Kronecker factors.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.command import Setting, Study, main
from benchmarks.data import Pair
from benchmarks.problems import PROBLEMS, batches, gradient
from benchmarks.report import ROOT, Row, beside

Timed = dict[str, float]


def problem(name: str, images: int) -> tuple[nn.Module, Pair]:
    """The LeNet or the ResNet-20 as it is initialised, with so many generated images, the same in every process."""
    return PROBLEMS[name].model(None), PROBLEMS[name].data(None, images, 1).train


def laplace(structure: str, options: Mapping[str, Any] | None = None, **kinds: str) -> Any:
    """A recipe of the library that this process runs, by the names of its parts.

    Args:
        structure: How the precision is held.
        options: Of the structure.
        **kinds: Other choices of the recipe.
    """
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
        "fresh": processor_seconds(fit),
        "seconds": again(fit, 3),
        "g": again(partial(gradient, model, batches(*pair, 100)), 3),
    }


def diagonal(name: str, images: int) -> Timed:
    """A fit of the diagonal."""
    fit = partial(laplace("Diagonal").fit, *problem(name, images))
    return {"seconds": again(fit, 3)}


def last_layer(images: int) -> Timed:
    """A fit of the LeNet's last layer and a prediction of the same images."""
    model, (x, y) = problem("lenet", images)
    recipe = laplace("Full", weights="LastLayer")
    return {"seconds": again(lambda: recipe.fit(model, (x, y)).predict(x), 3)}


def process(observations: int) -> Timed:
    """The exact posterior of a Gaussian process, and its variances at a tenth as many inputs."""
    import lapwing as lw

    generator = torch.Generator().manual_seed(0)
    x = torch.rand(observations, 4, generator=generator, dtype=torch.float64)
    y = x.sum(1).sin() + 0.1 * torch.randn(observations, generator=generator, dtype=torch.float64)
    recipe = lw.GP(lw.gp.Matern(0.5), lw.Gaussian(100.0))
    new = x[: observations // 10] + 0.01
    return {"seconds": again(lambda: recipe.fit((x, y)).outputs(new).marginal().variance, 3)}


def tomography() -> Timed:
    """The demonstration of tomography, very small."""
    from lapwing.cli.ct import demo

    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        return {"seconds": processor_seconds(lambda: demo(out=Path(folder), quick=True))}


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
    return {"seconds": processor_seconds(lambda: lw.tune(posterior, lw.EM(steps=steps))) / steps}


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

    return {"fresh": processor_seconds(factors), "seconds": again(factors, 3)}


WORKS: dict[str, Callable[[], Timed]] = {
    **{f"lenet/product/{k}": lambda k=k: products("lenet", 500, k) for k in (1, 2, 4, 8, 32)},
    **{f"resnet20/product/{k}": lambda k=k: products("resnet20", 100, k) for k in (1, 2, 8, 32)},
    "lenet/kfac/GGN": lambda: kfac("lenet", 2000, "GGN"),
    "resnet20/kfac/GGN": lambda: kfac("resnet20", 200, "GGN"),
    "resnet20/kfac/MCFisher": lambda: kfac("resnet20", 200, "MCFisher"),
    "resnet20/kfac/predict": lambda: predict("resnet20", 256),
    "lenet/diagonal": lambda: diagonal("lenet", 2000),
    "lenet/last-layer": lambda: last_layer(2000),
    "lenet/em": lambda: em(500, 3),
    "gp": lambda: process(3000),
    "ct/demo": tomography,
    "backpack": lambda: backpack(2000),
}
"""What is timed, by name."""


def processor_seconds(work: Callable[[], object]) -> float:
    """What this process took of a processor while it did something, all its threads together."""
    start = time.process_time()
    work()
    return time.process_time() - start


def again(work: Callable[[], object], times: int) -> float:
    """Median seconds after a first time."""
    work()
    return statistics.median(processor_seconds(work) for _ in range(times))


def measured(name: str) -> Timed:
    """What a work says, and the peak of memory above what this process has now, MiB."""
    import lapwing  # noqa: F401

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = WORKS[name]()
    return found | {"peak_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


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
    """Every work's seconds and memory now and then, and its seconds beside a gradient or BackPACK."""
    before, rounds = setting.more["before"], 1 if setting.quick else setting.seeds
    texts = setting.only or (("lenet/product/1",) if setting.quick else ("",))
    names = [name for name in WORKS if name != "backpack" and any(text in name for text in texts)]
    note = f"medians of {rounds} processes, in turns"
    with earlier(before) as tree:
        trees = {"before": tree, "after": ROOT}
        for name in names:
            found = turns(name, trees, rounds)
            now, then = found["after"], found["before"]
            for quantity in ("seconds", "peak_mib"):
                yield beside(name, quantity, now[quantity], then[quantity], f"lapwing at {before}", note)
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
        sys.stdout.write(json.dumps(measured(sys.argv[2])))
    else:
        main({"commits": STUDY})
