"""What posteriors say where one process, two, or four have the data: a program that the tests of ranks run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import torch
import torch._dynamo  # noqa: F401  seconds to import: once, before the processes part
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.ground.errors import (
    ConfigError,
    ConvergenceWarning,
    DataError,
    DataWarning,
    NumericalError,
    UnsupportedError,
)
from lapwing.tuning.elbo import Climb

EXAMPLES = 22
SHOWN = 5
Part = Callable[[Tensor], Tensor]


def network(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, outputs)).double()


def examples() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, labels, and values near those of a network, where its Hessian is positive definite."""
    x = torch.randn(EXAMPLES, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, torch.arange(EXAMPLES) % 3, network(1)(x).detach() + 0.1 * x.sum(1, keepdim=True).sin()


def numbers(part: Part) -> dict[str, Any]:
    """Of a fit by layers, of tuning it, and of refits; ``part`` takes this process's examples of all."""
    x, labels, y = examples()
    found: dict[str, Any] = {}
    recipe = lw.Laplace(lw.Categorical(), structure=lw.KFAC())
    single = recipe.fit(network(3).float(), (part(x), part(labels)))
    fitted = recipe.fit(network(3), (part(x), part(labels)))
    tuned, judged = lw.tune(fitted), lw.tune(fitted, lw.Validation((part(x.cos()), part(labels)), link="probit"))
    for name, each in (("single", single), ("fitted", fitted), ("tuned", tuned), ("validated", judged)):
        found[f"KFAC, {name}"] = each.predict(x[:SHOWN]).logits.covariance
        found[f"evidence of KFAC, {name}"] = torch.tensor(float(each.log_marginal()), dtype=each.network.like.dtype)
    data, batches = (part(x), part(y)), [(part(a), part(b)) for a, b in zip(x.split(11), y.split(11), strict=True)]
    prior, probed, inner = lw.Isotropic(20.0), lw.Probed(3, 2), lw.hessian_free
    for name, fits, points, solver in (
        ("Newton at the data", probed, None, inner.NewtonCG()),
        ("Newton in sample", lw.PreTrained("in_sample"), x[:SHOWN], inner.NewtonCG()),
        ("L-BFGS", probed, x[:SHOWN], inner.LBFGS(rtol=1e-8)),
        ("descent", probed, x[:SHOWN], inner.Descent(lambda p: torch.optim.SGD(p, lr=0.1), epochs=9)),
    ):
        recipe = lw.HessianFree(lw.Gaussian(), prior=prior, fits=fits, inner=solver)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            posterior = recipe.fit(network(1), batches if name == "descent" else data, points)
        found[f"refits: {name}"] = posterior.predict(x[:SHOWN] if points is not None else x).outputs.covariance
    found["refits: weights"] = inner.weight_uncertainty(network(1), data, lw.Gaussian(), prior=prior).std
    return found


def told(part: Part) -> dict[str, Any]:
    """Numbers of the other structures and ways to tune."""
    x, labels, y = examples()
    classes = list(zip(part(x).split(4), part(labels).split(4), strict=True))
    found: dict[str, Any] = {}

    def show(name: str, posterior: Any) -> None:
        predicted = posterior.predict(x[:SHOWN])
        found[name] = (predicted.outputs if name.startswith("values") else predicted.logits).covariance

    for structure in (lw.Full(view="weights"), lw.Diagonal(), lw.LowRank(9)):
        fitted = lw.Laplace(lw.Categorical(), structure=structure).fit(network(3), classes)
        show(f"classes {type(structure).__name__}", fitted)
        found[f"evidence {type(structure).__name__}"] = torch.tensor(float(fitted.log_marginal()), dtype=torch.float64)
    for structure in (lw.MatrixFree(), lw.Sampled(3), lw.Auto()):
        fitted = lw.Laplace(lw.Categorical(), structure=structure).fit(network(3), classes)
        show(f"classes {type(structure).__name__}", fitted)
    head = lw.Laplace(lw.Categorical(), structure=lw.KFAC(), weights=lw.LastLayer()).fit(network(3), classes)
    show("classes head", head)
    show("tuned by the bound", lw.tune(head, lw.ELBO(examples=EXAMPLES)))
    cut = lw.Laplace(lw.Categorical(), structure=lw.KFAC(rank=1)).fit(network(3), classes)
    show("classes KFAC of low rank", cut)
    recipe = lw.Laplace(lw.Gaussian(), prior=lw.Layerwise(1.0), structure=lw.Diagonal())
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)  # every process has a dataset of its own: nothing counts twice
        loader = DataLoader(TensorDataset(part(x), part(y)), batch_size=4)
        show("values", lw.tune(recipe.fit(network(1), loader)))
    exact = lw.Laplace(lw.Gaussian(), prior=lw.Isotropic(20.0), curvature=lw.Hessian())
    show("values by the exact Hessian", exact.fit(network(1), loader))
    solved = lw.Laplace(lw.Gaussian(), structure=lw.MatrixFree()).fit(network(1), (part(x), part(y)))
    found["diagonal"] = solved.problem.curvature.diagonal()
    found["gradient"] = lw.RankOne().curvature(solved.problem).dense()
    found["score"] = recipe.fit(network(1), (part(x), part(y))).totals.score
    return found


def saved(part: Part, rank: int, folder: Path) -> None:
    """A posterior is written by the first process, while the others wait."""
    x, labels, _ = examples()
    fitted = lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(network(3), (part(x), part(labels)))
    lw.save(fitted, folder / f"saved-by-{rank}.safetensors")
    again = lw.load(folder / "saved-by-0.safetensors", network(3), (part(x), part(labels)))
    assert torch.equal(again.predict(x).probs, fitted.predict(x).probs)


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
    solved = lw.Laplace(lw.Categorical(), structure=lw.MatrixFree()).fit(network(3), (part(x), part(labels)))
    try:
        solved.predict(part(x))
    except DataError as reason:
        found["other inputs"] = str(reason)
    try:
        lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(network(3), (part(x) * 1e160, part(labels)))
    except NumericalError as reason:
        found["inputs too large to square"] = str(reason)
    mini = part(x).split(4 + 2 * dist.get_rank())
    uneven = lw.HessianFree(lw.Gaussian(), inner=lw.hessian_free.Descent(epochs=1))
    try:
        uneven.fit(network(1), [(some, some[:, :1]) for some in mini], x[:2])
    except DataError as reason:
        found["other mini-batches"] = str(reason)
    try:
        lw.save(solved, f"{__file__}/posterior.safetensors")
    except ConfigError as reason:
        found["save"] = str(reason)
    return found


def chosen_examples(part: Part) -> tuple[int, float]:
    """How many examples the bound takes, and how many these stand for."""
    x, labels, _ = examples()
    head = lw.Laplace(lw.Categorical(), weights=lw.LastLayer()).fit(network(3), (part(x), part(labels)))
    expectation: Any = SimpleNamespace(tangent=SimpleNamespace(training=SimpleNamespace(data=head.data)))
    inputs, targets, weights = Climb(expectation, 8, 0, Mock())._chosen
    assert isinstance(inputs, Tensor) and len(inputs) == len(targets) == len(weights)
    return len(inputs), float(weights.sum())


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
    """One process of several, which writes what it was told; of three, one is killed."""
    timeout = timedelta(seconds=300)
    dist.init_process_group("gloo", f"file://{folder}/{world}", timeout=timeout, rank=rank, world_size=world)

    def part(values: Tensor) -> Tensor:
        return values.tensor_split(world)[rank]

    if world == 3:
        (folder / f"met-{rank}").touch()
        while rank == 1 and len(list(folder.glob("met-*"))) < world:
            time.sleep(0.01)  # one that dies while others still connect breaks their start, not their sum
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        begun = time.monotonic()
        try:
            numbers(part)
        except DataError as reason:
            torch.save((str(reason), time.monotonic() - begun), folder / f"lost-{rank}.pt")
        os._exit(0)
    found: dict[str, Any] = {"EM": tuned_in_steps(part, 2, folder / f"em-{world}")}
    found |= numbers(part)
    if world == 2:
        saved(part, rank, folder)
        found["chosen"] = chosen_examples(part)
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
    found = numbers(lambda values: values) | told(lambda values: values)
    found["EM"] = tuned_in_steps(lambda values: values, 4, where / "em-1")
    for child in children:
        child.join()
    for world in worlds:
        if world != 3:
            found[f"EM from {world}"] = tuned_in_steps(lambda values: values, 4, where / f"em-{world}")
    torch.save(found, where / "1-0.pt")
    sys.exit(max(child.exitcode or 0 for child in children))
