"""One problem and number of columns, in a process of its own: every contestant in turn, again and again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from curvlinops import GGNLinearOperator
from torch import Tensor, nn

from benchmarks.meter import Meter
from benchmarks.networks import weight_count
from benchmarks.products.problems import PROBLEMS
from lapwing.ground.data import Data
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.costs import Form
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.jacobian.products.products import MEMORY
from lapwing.likelihoods import Categorical
from lapwing.linear.gauss_newton import GGNProduct

FORMS: tuple[Form, ...] = ("layers", "split", "plain")
SHORTEST = 0.1
"""Seconds a measurement should take at least; shorter work is repeated inside it."""

SPENT = 15.0
"""Seconds of rounds after which no further one begins, once there are two."""

ROUNDS, SLOW, FEW = 7, 10.0, 2
"""Most rounds; a contestant that takes longer than ``SLOW`` seconds takes part in the first ``FEW``."""

TRIAL = 50
"""Examples on which the peer's batch sizes are compared, at least."""

Batches = list[tuple[Tensor, Tensor]]


def work(meter: Meter, *, problem: str, columns: int, data: str | None, threads: int, device: str) -> None:
    """Measure everything about one problem and number of columns; see the names of the steps in ``report``."""
    torch.set_num_threads(threads)
    given = PROBLEMS[problem]
    model, x, y = given.load(None if data is None else Path(data), device)
    block = torch.randn(weight_count(model), columns, device=device)
    gradient(model, batches(x[:16], y[:16], 16))
    theirs, size = best_peer(model, x, y, given.peer[columns], block)
    meter.ready()
    meter.step("peer memory", lambda: peer(model, batches(x[: 2 * size], y[: 2 * size], size)) @ block)
    ours = product(model, batches(x, y, given.batch), None, MEMORY)
    form = ours.model.choose(columns)
    meter.ready()
    meter.step("prepare", lambda: ours.model.prepare(columns), label=form)
    meter.step("memory", lambda: ours @ block, label=f"{kept(ours)} MiB kept")
    contestants: dict[str, tuple[Callable[[], object], str]] = {
        "gradient": (lambda: gradient(model, batches(x, y, given.batch)), ""),
        "peer": (lambda: theirs @ block, f"batches of {size}"),
        "ours": (lambda: ours @ block, form),
    }
    for other in FORMS:
        if other != form:
            share = 8 if given.eighth else 1
            n = len(x) // share
            operator = product(model, batches(x[:n], y[:n], given.batch), other, MEMORY // share)
            operator.model.prepare(columns)
            contestants[other] = (lambda operator=operator: operator @ block, f"{n} examples")
    few = batches(x[:TRIAL], y[:TRIAL], TRIAL)
    exact = peer(model, few) @ block
    difference = float((product(model, few, form, MEMORY) @ block - exact).norm() / exact.norm())
    meter.step("difference", lambda: None, label=f"{difference:.1e}")
    rounds(meter, contestants)


def rounds(meter: Meter, contestants: dict[str, tuple[Callable[[], object], str]]) -> None:
    """Measure all in turn until there is enough."""
    start, took = time.perf_counter(), dict.fromkeys(contestants, 0.0)
    repeats = dict.fromkeys(contestants, 1)
    for turn in range(ROUNDS):
        if turn >= FEW and time.perf_counter() - start > SPENT:
            return
        for name, (once, label) in contestants.items():
            if turn >= FEW and took[name] > SLOW:
                continue
            begun = time.perf_counter()
            meter.step(name, lambda once=once, n=repeats[name]: again(once, n), label=f"{label}|{repeats[name]}")
            took[name] = (time.perf_counter() - begun) / repeats[name]
        if turn == 0:
            repeats = {name: max(1, math.ceil(SHORTEST / each)) for name, each in took.items()}


def again(once: Callable[[], object], times: int) -> None:
    """Do it several times."""
    for _ in range(times):
        once()


def seconds(once: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    start = time.perf_counter()
    once()
    return time.perf_counter() - start


def batches(x: Tensor, y: Tensor, size: int) -> Batches:
    """The data in batches."""
    return list(zip(x.split(size), y.split(size), strict=True))


def gradient(model: nn.Module, data: Batches) -> None:
    """A plain forward and backward pass over the data."""
    model.zero_grad()
    for x, y in data:
        F.cross_entropy(model(x), y, reduction="sum").backward()


def product(model: nn.Module, data: Batches, form: Form | None, memory: int) -> GGNProduct:
    """Lapwing's operator."""
    network = Network.of(model)
    return GGNProduct(Linearisation(Model.of(network, Categorical(), Data(data, like=network.like)), memory, form))


def peer(model: nn.Module, data: Batches) -> GGNLinearOperator:
    """The peer's operator, without its check of the data, which takes two more products."""
    loss = nn.CrossEntropyLoss(reduction="sum")
    return GGNLinearOperator(model, loss, list(model.parameters()), data, check_deterministic=False)


def best_peer(
    model: nn.Module, x: Tensor, y: Tensor, sizes: tuple[int, ...], block: Tensor
) -> tuple[GGNLinearOperator, int]:
    """The peer with the batch size that takes the least time for an example, and that size."""
    costs: dict[int, float] = {}
    for size in sizes:
        n = min(len(x), max(size, TRIAL))
        trial = peer(model, batches(x[:n], y[:n], size))
        once = seconds(lambda trial=trial: trial @ block)
        costs[size] = (once if once > 1 else min(once, seconds(lambda trial=trial: trial @ block))) / n
    size = min(costs, key=costs.__getitem__)
    return peer(model, batches(x, y, size)), size


def kept(operator: GGNProduct) -> str:
    """MiB kept between products."""
    return f"{operator.model.store.bytes / 2**20:.0f}"
