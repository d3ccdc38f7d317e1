# pyright: basic, reportMissingImports=false
"""An endpoint for exported posteriors, and how long it takes to answer on the loopback; it needs no lapwing.

    python -m demo.endpoint model.pt2 --input 4 --seconds 5

The file is what ``lw.export`` writes for a network that takes rows of numbers; FastAPI, uvicorn and httpx must be
there. Requests come one after the other, for so many seconds; percentiles are of the whole way there and back, in
milliseconds. Beside them is an endpoint that answers without computing anything.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Served = Callable[[Tensor], Mapping[str, Tensor]]
"""From inputs to what is predicted, by name."""

PERCENTILES = (50, 95, 99)


def application(programs: Mapping[str, Served]) -> Any:
    """An application that answers ``POST /NAME`` with a JSON array of inputs, one row an example.

    Args:
        programs: What is served, by name.
    """
    from fastapi import Body, FastAPI, HTTPException

    app = FastAPI()
    body: Any = Body()

    @app.post("/{name}")
    def predict(name: str, rows: Any = body) -> dict[str, Any]:
        if name not in programs:
            raise HTTPException(404, f"one of {', '.join(programs)}")
        try:
            inputs = torch.tensor(rows, dtype=torch.get_default_dtype())
        except (TypeError, ValueError) as error:
            raise HTTPException(422, f"rows of numbers: {error}") from error
        if not bool(inputs.isfinite().all()):  # a program checks nothing
            raise HTTPException(422, "finite numbers")
        with torch.no_grad():
            answers = programs[name](inputs)
        return {key: value.tolist() for key, value in answers.items()}

    return app


@contextmanager
def running(app: Any) -> Generator[str]:
    """The address of an application while it runs on the loopback."""
    import uvicorn

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)


def latencies(address: str, name: str, rows: list[list[float]], seconds: float, most: int = 10_000) -> dict[str, float]:
    """Percentiles of the milliseconds that answers take, of at most so many requests in so many seconds.

    Args:
        address: Of the server.
        name: Of what is served.
        rows: Inputs.
        seconds: How long requests are made.
        most: Requests at most.
    """
    import httpx

    taken: list[float] = []
    end = time.perf_counter() + seconds
    with httpx.Client(base_url=address) as client:
        client.post(f"/{name}", json=rows).raise_for_status()
        while len(taken) < 2 or (time.perf_counter() < end and len(taken) < most):
            start = time.perf_counter()
            client.post(f"/{name}", json=rows).raise_for_status()
            taken.append(1e3 * (time.perf_counter() - start))
    cuts = statistics.quantiles(taken, n=100, method="inclusive")
    return {"requests": len(taken), **{f"p{percent}": cuts[percent - 1] for percent in PERCENTILES}}


def main() -> None:
    """Serve a file, and print how long it takes to answer."""
    parser = argparse.ArgumentParser(prog="python -m demo.endpoint", description=__doc__)
    parser.add_argument("file", help="what lw.export wrote")
    parser.add_argument("--input", type=int, required=True, help="numbers of one example")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long requests are made of each")
    options = parser.parse_args()
    programs: dict[str, Served] = {
        "nothing": lambda inputs: {"answer": inputs[:, 0]},
        "posterior": torch.export.load(options.file).module(),
    }
    rows = torch.zeros(1, options.input).tolist()
    with running(application(programs)) as address:
        for name in programs:
            found = latencies(address, name, rows, options.seconds)
            print(name, ", ".join(f"{key} {value:.4g}" for key, value in found.items()))


if __name__ == "__main__":
    main()
