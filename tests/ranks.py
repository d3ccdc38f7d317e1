"""What posteriors say where one process, two, or four have the data: a program that the tests of ranks run."""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.ground.errors import ConvergenceWarning, DataError, DataWarning, UnsupportedError

EXAMPLES = 22
SHOWN = 5
Part = Callable[[Tensor], Tensor]


def network(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, outputs)).double()


def told(part: Part) -> dict[str, Any]:
    """Numbers of every structure; ``part`` takes this process's examples of all."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(EXAMPLES, 3, generator=generator, dtype=torch.float64)
    labels, y = torch.arange(EXAMPLES) % 3, x.sum(1, keepdim=True).sin()
    classes = list(zip(part(x).split(4), part(labels).split(4), strict=True))
    found: dict[str, Any] = {}

    def show(name: str, posterior: Any) -> None:
        predicted = posterior.predict(x[:SHOWN])
        found[name] = (predicted.outputs if name == "values" else predicted.logits).covariance

    for structure in (lw.Full(view="weights"), lw.KFAC(), lw.Diagonal(), lw.LowRank(9)):
        fitted = lw.Laplace(lw.Categorical(), structure=structure).fit(network(3), classes)
        show(f"classes {type(structure).__name__}", fitted)
        found[f"evidence {type(structure).__name__}"] = torch.tensor(float(fitted.log_marginal()), dtype=torch.float64)
    for structure in (lw.MatrixFree(), lw.Sampled(3), lw.Auto()):
        fitted = lw.Laplace(lw.Categorical(), structure=structure).fit(network(3), classes)
        show(f"classes {type(structure).__name__}", fitted)
    head = lw.Laplace(lw.Categorical(), structure=lw.KFAC(), weights=lw.LastLayer()).fit(network(3), classes)
    show("classes head", head)
    for method in (None, lw.ELBO(examples=EXAMPLES)):
        show(f"tuned {type(method).__name__}", lw.tune(head, method))
    recipe = lw.Laplace(lw.Gaussian(), prior=lw.Layerwise(1.0), structure=lw.Diagonal())
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)  # every process has a dataset of its own: nothing counts twice
        loader = DataLoader(TensorDataset(part(x), part(y)), batch_size=4)
        show("values", lw.tune(recipe.fit(network(1), loader)))
    solved = lw.Laplace(lw.Gaussian(), structure=lw.MatrixFree()).fit(network(1), (part(x), part(y)))
    found["diagonal"] = solved.problem.curvature.diagonal()
    found["score"] = recipe.fit(network(1), (part(x), part(y))).totals.score
    return found


def refused(part: Part) -> dict[str, str]:
    """What is said of that which needs all data in one process, and of data that all have."""
    x, labels = torch.arange(3.0 * EXAMPLES, dtype=torch.float64).view(-1, 3), torch.arange(EXAMPLES) % 3
    found: dict[str, str] = {}
    for structure in (lw.Nystrom(3, samples=9), lw.Full(view="functions"), lw.Sampled(2, solver=lw.SGD())):
        try:
            lw.Laplace(lw.Categorical(), structure=structure).fit(network(3), (part(x), part(labels))).predict(x[:1])
        except UnsupportedError as reason:
            found[type(structure).__name__] = str(reason)
    other = network(3)
    with torch.no_grad():
        next(other.parameters())[0] += float(dist.get_rank())
    try:
        lw.Laplace(lw.Categorical()).fit(other, (part(x), part(labels)))
    except DataError as reason:
        found["other weights"] = str(reason)
    try:
        lw.Laplace(lw.Categorical()).fit(network(3), (x, labels))
    except DataError as reason:
        found["all of the data"] = str(reason)
    return found


def bytes_sent(call: Callable[[], object]) -> int:
    """Bytes that processes add up while something is called."""
    seen, added = 0, dist.all_reduce

    def counting(values: Tensor) -> None:
        nonlocal seen
        seen += values.nbytes
        added(values)

    dist.all_reduce = counting
    call()
    dist.all_reduce = added
    return seen


def tuned_in_steps(part: Part, steps: int, checkpoint: Path) -> Tensor:
    """The prior precision after some steps of EM by draws, which go on from a file."""
    x = torch.randn(EXAMPLES, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    recipe = lw.Laplace(lw.Gaussian(), structure=lw.Sampled(4))
    fitted = recipe.fit(network(1), (part(x), part(x[:, :1].cos())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        tuned = lw.tune(fitted, lw.EM(steps=steps, tolerance=1e-9, checkpoint=checkpoint))
    return tuned.prior.diagonal(tuned.network.uncertain, tuned.network.like)[:1]


def run(rank: int, world: int, folder: Path) -> None:
    """One process of several, which writes what it was told; of three, one goes away before the end."""
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{folder}/{world}", timeout=timeout, rank=rank, world_size=world)

    def part(values: Tensor) -> Tensor:
        return values.tensor_split(world)[rank]

    if world == 3:
        if rank == 1:
            os._exit(0)
        try:
            told(part)
        except DataError as reason:
            torch.save(str(reason), folder / f"lost-{rank}.pt")
        os._exit(0)
    found: dict[str, Any] = {"EM": tuned_in_steps(part, 2, folder / f"em-{world}")}
    if world == 2:
        x = torch.arange(3.0 * EXAMPLES, dtype=torch.float64).view(-1, 3)
        fitted = lw.Laplace(lw.Gaussian(), structure=lw.MatrixFree()).fit(network(1), (part(x), part(x[:, :1])))
        curvature = fitted.problem.curvature
        found["bytes"] = bytes_sent(lambda: curvature @ torch.ones(curvature.shape[0], 5, dtype=torch.float64))
        found |= told(part) | {"refused": refused(part)}
    torch.save(found, folder / f"{world}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    where, worlds = Path(sys.argv[1]), [int(each) for each in sys.argv[2:]]
    forked = multiprocessing.get_context("fork")
    children = [forked.Process(target=run, args=(rank, world, where)) for world in worlds for rank in range(world)]
    for child in children:
        child.start()
    found = told(lambda values: values)
    found["EM"] = tuned_in_steps(lambda values: values, 4, where / "em-1")
    for child in children:
        child.join()
    for world in worlds:
        if world != 3:
            found[f"EM from {world}"] = tuned_in_steps(lambda values: values, 4, where / f"em-{world}")
    torch.save(found, where / "1-0.pt")
    sys.exit(max(child.exitcode or 0 for child in children))
