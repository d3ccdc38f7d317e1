"""One problem and number of columns, in a process of its own: every contestant in turn, again and again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from curvlinops import GGNLinearOperator
from torch import Tensor, nn

from benchmarks.meter import Meter
from benchmarks.networks import weight_count
from benchmarks.problems import PROBLEMS, Batches, batches, gradient
from benchmarks.product_sizes import EXAMPLES, STRATEGIES
from benchmarks.report import timed
from lapwing.ground.data.sources import Data
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.cache import MEMORY
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.jacobian.products.strategy import Strategy
from lapwing.jacobian.survey import surveyed
from lapwing.likelihoods import Categorical
from lapwing.linear.gauss_newton import GGNProduct

PEER_BATCHES: dict[str, dict[int, tuple[int, ...]]] = {
    "mlp": {1: (250, 1000), 32: (50, 250)},
    "lenet": {1: (125, 250), 32: (50, 250)},
    "resnet20": {1: (50, 125), 32: (10, 25)},
}
"""Batch sizes the peer is tried with, for one column and for a block; the fastest counts."""

BATCHES = {"mlp": 1000, "lenet": 250, "resnet20": 125}
"""Examples to a batch, for lapwing and for plain gradients."""

EIGHTH = ("resnet20",)
"""Where strategies the rule does not pick, slow ones among them, are timed on an eighth of the examples."""

SPENT = 15.0
"""Seconds of rounds after which no further one begins, once there are two."""

ROUNDS, SLOW, FEW = 7, 10.0, 2
"""Most rounds; a contestant that takes longer than ``SLOW`` seconds takes part in the first ``FEW``."""

TRIAL = 50
"""Examples on which the peer's batch sizes are compared, at least."""


def work(
    meter: Meter, *, problem: str, columns: int, data: str | None, threads: int, device: str, quick: bool = False
) -> None:
    """Measure everything about one problem and number of columns; see the names of the steps in ``report``."""
    torch.set_num_threads(threads)
    folder, examples = None if data is None else Path(data), 40 if quick else EXAMPLES
    model = PROBLEMS[problem].model(folder).to(device)
    x, y = PROBLEMS[problem].data(folder, examples, 1).to(device).train
    batch, sizes = BATCHES[problem], PEER_BATCHES[problem][columns][: 1 if quick else None]
    block = torch.randn(weight_count(model), columns, device=device)
    gradient(model, batches(x[:16], y[:16], 16))
    theirs, size = best_peer(model, x, y, sizes, block)
    meter.ready()
    meter.step("peer memory", lambda: peer(model, batches(x[: 2 * size], y[: 2 * size], size)) @ block)
    ours = product(model, batches(x, y, batch), None, MEMORY)
    chosen = ours.model.choose(columns)
    meter.ready()
    meter.step("prepare", lambda: sum(1 for _ in ours.model.visit(columns)), label=chosen)
    meter.step("memory", lambda: ours @ block, label=f"{kept(ours)} MiB kept")
    contestants: dict[str, tuple[Callable[[], object], str]] = {
        "gradient": (lambda: gradient(model, batches(x, y, batch)), ""),
        "peer": (lambda: theirs @ block, f"batches of {size}"),
        "ours": (lambda: ours @ block, chosen),
    }
    for other in STRATEGIES:
        if other != chosen:
            share = 8 if problem in EIGHTH else 1
            n = len(x) // share
            operator = product(model, batches(x[:n], y[:n], batch), other, MEMORY // share)
            _ = sum(1 for _ in operator.model.visit(columns))
            contestants[other] = (lambda operator=operator: operator @ block, f"{n} examples")
    few = batches(x[:TRIAL], y[:TRIAL], TRIAL)
    exact = peer(model, few) @ block
    difference = float((product(model, few, chosen, MEMORY) @ block - exact).norm() / exact.norm())
    meter.step("difference", lambda: None, label=f"{difference:.1e}")
    rounds(meter, contestants, *((2, 1e-3) if quick else (ROUNDS, 0.1)))


def rounds(meter: Meter, contestants: dict[str, tuple[Callable[[], object], str]], most: int, shortest: float) -> None:
    """Measure all in turn until there is enough.

    Args:
        meter: Measures.
        contestants: What is measured, and its label, by name.
        most: Rounds.
        shortest: Seconds a measurement should take at least; shorter work is repeated inside it.
    """
    start, took = time.perf_counter(), dict.fromkeys(contestants, 0.0)
    repeats = dict.fromkeys(contestants, 1)
    for turn in range(most):
        if turn >= FEW and time.perf_counter() - start > SPENT:
            return
        for name, (once, label) in contestants.items():
            if turn >= FEW and took[name] > SLOW:
                continue
            begun = time.perf_counter()
            meter.step(name, once, label=label, times=repeats[name])
            took[name] = (time.perf_counter() - begun) / repeats[name]
        if turn == 0:
            repeats = {name: max(1, math.ceil(shortest / each)) for name, each in took.items()}


def product(model: nn.Module, data: Batches, strategy: Strategy | None, memory: int) -> GGNProduct:
    """Lapwing's operator."""
    network = Network.of(model)
    return GGNProduct(Linearisation(surveyed(network, Categorical(), Data(data, like=network.like)), memory, strategy))


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
        once = timed(lambda trial=trial: trial @ block)[1]
        costs[size] = (once if once > 1 else min(once, timed(lambda trial=trial: trial @ block)[1])) / n
    size = min(costs, key=costs.__getitem__)
    return peer(model, batches(x, y, size)), size


def kept(operator: GGNProduct) -> str:
    """MiB kept between products."""
    return f"{operator.model.cache.bytes / 2**20:.0f}"
