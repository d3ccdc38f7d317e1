"""Latency of one input: the plain network, what a posterior predicts, and the same recorded, without lapwing.

    python -m benchmarks.serving --json FILE [--images 200] [--seeds 5]

Milliseconds are those of the processor on one thread, medians over turns in which every way has its share;
``over_plain`` is beside the plain network. Weights, images and labels are drawn: what a call takes does not depend on
them. ``as`` is ``predict``, the posterior with lapwing, or ``module``, what ``lw.export`` writes as PyTorch loads it.

Rows of the method ``endpoint`` are of requests to ``demo.endpoint`` on the loopback, one after the other, in
milliseconds of the clock there and back, medians of turns of four seconds: ``nothing`` answers without computing,
``plain`` by the network, ``module`` by an exported last layer. They need FastAPI, uvicorn and httpx, and are left out
without.
"""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.data import generator
from benchmarks.networks import ResNet, digit_cnn, seeded
from benchmarks.report import Row
from demo.endpoint import Served, application, running
from demo.endpoint import latencies as clocked

METHODS: dict[str, dict[str, Any]] = {
    "last layer": {"weights": lw.LastLayer(), "structure": lw.Full()},
    "last layer, KFAC": {"weights": lw.LastLayer(), "structure": lw.KFAC()},
    "KFAC": {"structure": lw.KFAC()},
    "Nyström": {"structure": lw.Nystrom(20, samples=100)},
    "drawn networks": {"weights": lw.LastLayer(), "structure": lw.KFAC()},
}
"""Options of ``Laplace``, by name."""

ENDPOINT = "endpoint"
"""The method of the rows of requests."""

NETWORKS = 16
"""Those that are drawn."""

LEAST = 0.2
"""Seconds that one way is called for in a turn."""


def rows(setting: Setting) -> Iterator[Row]:
    """Latencies of each method and of the plain network, in turns."""
    torch.set_num_threads(1)
    model, size = network(quick=setting.quick)
    count = setting.images or (40 if setting.quick else 200)
    images = torch.randn(count, *size, generator=generator())
    labels = torch.randint(10, (count,), generator=generator())
    one = images[:1]
    for name in setting.among((*METHODS, ENDPOINT)):
        if name == ENDPOINT:
            yield from requests(model, (images, labels), one, setting)
        else:
            yield from latencies(name, model, (images, labels), one, setting)


def network(*, quick: bool) -> tuple[nn.Module, tuple[int, int, int]]:
    """A network with random weights in eval mode, and the shape of its images."""
    if quick:
        return digit_cnn(8), (1, 8, 8)
    return seeded(lambda: ResNet(3), 0).eval(), (3, 32, 32)


def latencies(name: str, model: nn.Module, data: tuple[Tensor, Tensor], one: Tensor, setting: Setting) -> Iterator[Row]:
    """Of one method by ``predict`` and as a module, with the plain network between them."""
    posterior: Any = lw.Laplace(lw.Categorical(), **METHODS[name]).fit(model, data)
    options: dict[str, Any] = {"linearised": False, "samples": NETWORKS} if name == "drawn networks" else {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.pt2"
        lw.export(posterior, file, ("probs", "outputs_std"), **options)
        served = torch.export.load(file).module()
        size = file.stat().st_size
    ways: dict[str, Callable[[], object]] = {
        "plain": lambda: model(one),
        "predict": lambda: posterior.predict(one, epistemic=False, **options),
        "module": lambda: served(one),
    }
    found = posterior.predict(one, **options, **({"generator": 0} if options else {})).probs
    difference = float((served(one)["probs"] - found).abs().max())
    taken: dict[str, list[float]] = {way: [] for way in ways}
    with torch.no_grad():
        for _ in setting.repeats:
            for way, call in ways.items():
                taken[way].append(seconds(call))
    plain = statistics.median(taken["plain"])
    for way in ("predict", "module"):
        own = statistics.median(taken[way])
        row: Row = {"method": name, "as": way, "milliseconds": 1e3 * own, "plain_milliseconds": 1e3 * plain}
        row |= {"over_plain": own / plain}
        if way == "module":
            row |= {"megabytes": size / 1e6, "largest_difference": difference}
        yield row


def requests(model: nn.Module, data: tuple[Tensor, Tensor], one: Tensor, setting: Setting) -> Iterator[Row]:
    """What requests to an endpoint take; none where its packages are missing."""
    if any(importlib.util.find_spec(package) is None for package in ("fastapi", "uvicorn", "httpx")):
        return
    posterior = lw.Laplace(lw.Categorical(), **METHODS["last layer"]).fit(model, data)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.pt2"
        lw.export(posterior, file, ("probs", "outputs_std"))
        served: Any = torch.export.load(file).module()

    def plain(inputs: Tensor) -> dict[str, Tensor]:
        return {"probs": model(inputs.view(-1, *one.shape[1:])).softmax(-1)}

    def module(inputs: Tensor) -> Any:
        return served(inputs.view(-1, *one.shape[1:]))

    programs: dict[str, Served] = {
        "nothing": lambda inputs: {"answer": inputs[:, 0]},
        "plain": plain,
        "module": module,
    }
    flat = one.flatten(1).tolist()
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in programs}
    with running(application(programs)) as address:
        for _ in setting.repeats:
            for name in programs:
                turns[name].append(clocked(address, name, flat, seconds=0.2 if setting.quick else 4.0))
    for name, found in turns.items():
        row: Row = {"method": ENDPOINT, "as": name, "requests": sum(turn["requests"] for turn in found)}
        for cut in ("p50", "p95", "p99"):
            row[f"milliseconds_{cut}"] = statistics.median(turn[cut] for turn in found)
        yield row


def seconds(call: Callable[[], object]) -> float:
    """Those of the processor that one call takes, of as many as fill ``LEAST``."""
    call()
    calls = 0
    start = time.process_time()
    while time.process_time() - start < LEAST or calls < 3:
        call()
        calls += 1
    return (time.process_time() - start) / calls


if __name__ == "__main__":
    main({"serving": Study(rows, seeds=5)})
