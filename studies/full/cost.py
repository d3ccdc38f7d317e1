"""Seconds of products and solves against the number of weights (Brack 2023, section 5.1, table 1).

``quadratic`` is the source's problem with a spectrum of its own: outputs ``2 θ + 0.5``, loss ``Σ s_i f_i²``, so that
the Hessian and the Gauss-Newton matrix are ``diag(8 s)``; s falls from 1 to 1/κ where the source has κ = 1, with which
conjugate gradients end after one step. ``network`` is a perceptron with one hidden layer of about √d units and 32
random examples. GVP is the product with the Gauss-Newton matrix, HVP the one with the Hessian; "explicit" builds the
matrix, in every run anew, and multiplies or factorises it. All take turns; seconds are the processor's.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.command import Setting
from benchmarks.data import generator
from benchmarks.networks import perceptron
from benchmarks.report import Row, attempt, curve, figure, grouped
from lapwing.ground import probes
from lapwing.ground.data.sources import Data
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.hessian import hessian_product
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.jacobian.survey import surveyed
from lapwing.likelihoods import Gaussian
from lapwing.linalg import FunctionOperator, Operator
from lapwing.linalg.cg import conjugate_gradients
from lapwing.linear.gauss_newton import GGNProduct
from studies.full.setting import SOURCE
from studies.published import beside_published

EXAMPLES = 32
RTOL = 1e-5
MOST = {1.0: 10_000_000, 1e2: 1_000_000, 1e4: 100_000}
"""Most weights of a problem that is solved, by its condition number; the first is that of the product too."""

RUNS = 5
BUDGET = 6.0
"""Most timed runs of each, after one to warm up, and seconds after which no further run is begun."""

SHORTEST = 0.02
"""Processor seconds a timing takes at least, in a hurry a tenth: what is shorter is done several times."""

LARGEST = 2**30
"""Bytes the explicit matrix may take."""

FACTORISED = 1000
"""Most weights for which the explicit matrix is factorised."""

PRODUCTS = {10: 2.55, 100: 2.51, 1000: 2.43, 10_000: 2.49, 100_000: 2.44, 1_000_000: 2.37, 10_000_000: 2.31}
SOLVES = {10: 1.56, 100: 1.44, 1000: 1.20, 10_000: 1.36, 100_000: 1.58, 1_000_000: 1.40, 10_000_000: 1.59}
"""The source's seconds by HVP over those by GVP, from its table 1, by the number of weights."""


def rows(setting: Setting) -> Iterator[Row]:
    """One row for each problem, operation, number of weights and condition number."""
    sizes = (10, 30) if setting.quick else tuple(10**k for k in range(1, 8))
    for d in sizes:
        yield setting.resumed({"problem": "quadratic", "operation": "product", "d": d}, partial(products, setting, d))
        for condition in [one for one, most in MOST.items() if d <= most][: 2 if setting.quick else None]:
            case: Row = {"problem": "quadratic", "operation": "solve", "d": d, "condition": condition}
            yield setting.resumed(case, partial(solves, setting, d, condition))
    for size in (100,) if setting.quick else (1000, 10_000, 100_000, 1_000_000):
        case = {"problem": "network", "operation": "product", "size": size}
        yield setting.resumed(case, partial(of_network, setting, size))


def products(setting: Setting, d: int) -> Row:
    """Seconds of products with the matrix of the source's problem."""
    v = vector(d)
    ggn = quadratic("GVP", d, 1.0)
    hessian = quadratic("HVP", d, 1.0)
    ways = {"gvp": lambda: ggn @ v, "hvp": lambda: hessian @ v, "explicit": lambda: ggn.dense(LARGEST) @ v}
    return compared(setting, ways)


def solves(setting: Setting, d: int, condition: float) -> Row:
    """Seconds of solves with it by conjugate gradients, and by a factorisation of the matrix."""
    v = vector(d)
    ggn = quadratic("GVP", d, condition)
    hessian = quadratic("HVP", d, condition)
    ways: dict[str, Callable[[], Any]] = {
        "gvp": lambda: conjugate_gradients(ggn, v, rtol=RTOL),
        "hvp": lambda: conjugate_gradients(hessian, v, rtol=RTOL),
    }
    if condition == 1.0 and d <= FACTORISED:
        ways["explicit"] = lambda: torch.cholesky_solve(v[:, None], torch.linalg.cholesky(ggn.dense(LARGEST)))
    solution = conjugate_gradients(ggn, v, rtol=RTOL)
    steps: Row = {"iterations": solution.iterations, "residual": float(solution.residual.max())}
    return steps | compared(setting, ways)


def of_network(setting: Setting, size: int) -> Row:
    """Seconds of a gradient of a perceptron, and of products with its matrices."""
    side = max(2, round(size**0.5))
    width = max(1, round((size - 1) / (side + 2)))
    model = perceptron(side, width, 1)
    x = torch.randn(EXAMPLES, side, generator=generator())
    y = torch.randn(EXAMPLES, 1, generator=generator(1))
    net = Network.of(model)
    data = Data((x, y), like=net.like)
    given = surveyed(net, Gaussian(), data)
    ggn = GGNProduct(Linearisation(given))
    hessian = hessian_product(given)
    v = vector(net.size)
    weights = list(model.parameters())

    def gradient() -> tuple[Tensor, ...]:
        return torch.autograd.grad((model(x) - y).square().sum(), weights)

    ways = {"gvp": lambda: ggn @ v, "hvp": lambda: hessian @ v, "gradient": gradient}
    return {"d": net.size} | compared(setting, ways)


def vector(d: int) -> Tensor:
    """A random one, to multiply or to solve for."""
    return probes.gaussian((d,), like=torch.empty(0), generator=generator())


def quadratic(way: str, size: int, condition: float) -> Operator:
    """``diag(8 s)`` by automatic differentiation of the source's problem.

    Args:
        way: ``"GVP"`` or ``"HVP"``.
        size: Weights.
        condition: Largest over smallest eigenvalue.
    """
    from torch.func import grad, jvp, vjp, vmap  # noqa: TID251, the bare products are what is timed

    scale = torch.logspace(0.0, -math.log10(condition), size)
    point = torch.linspace(-1.0, 1.0, size)

    def outputs(theta: Tensor) -> Tensor:
        return 2 * theta + 0.5

    def loss(f: Tensor) -> Tensor:
        return (scale * f.square()).sum()

    def ggn(v: Tensor) -> Tensor:
        pushed = jvp(outputs, (point,), (v,))
        curved = jvp(grad(loss), (pushed[0],), (pushed[1],))[1]
        return vjp(outputs, point)[1](curved)[0]

    def hessian(v: Tensor) -> Tensor:
        return jvp(grad(lambda theta: loss(outputs(theta))), (point,), (v,))[1]

    one = ggn if way == "GVP" else hessian

    def block(columns: Tensor) -> Tensor:
        if columns.shape[1] == 1:
            return one(columns[:, 0])[:, None]
        return vmap(one, in_dims=1, out_dims=1, chunk_size=64)(columns)

    return FunctionOperator(block, block, (size, size), point)


def compared(setting: Setting, ways: Mapping[str, Callable[[], Any]]) -> Row:
    """Mean and standard deviation of the processor's seconds of each way, which take turns, and HVP over GVP.

    The ratio is the median over the turns. A way that fails says why, and is left out of them.
    """
    runs = 2 if setting.quick else RUNS
    shortest = SHORTEST / 10 if setting.quick else SHORTEST
    row: Row = {}
    times: dict[str, int] = {}
    for name, work in ways.items():
        _, failure = attempt(work)
        if failure:
            row[f"{name}_failure"] = failure
        else:
            times[name] = max(1, round(shortest / max(processor_seconds(work, 1), 1e-9)))
    seconds: dict[str, list[float]] = {name: [] for name in times}
    begun = time.process_time()
    for _ in range(runs):
        for name, count in times.items():
            seconds[name].append(processor_seconds(ways[name], count))
        if time.process_time() - begun > BUDGET:
            break
    for name, values in seconds.items():
        row[f"{name}_seconds"] = statistics.fmean(values)
        row[f"{name}_std"] = statistics.stdev(values) if len(values) > 1 else None
        row["runs"] = len(values)
    if "gvp" in seconds and "hvp" in seconds:
        row["hvp_over_gvp"] = statistics.median(h / g for h, g in zip(seconds["hvp"], seconds["gvp"], strict=True))
    return row


def processor_seconds(work: Callable[[], Any], times: int) -> float:
    """Of one piece of work, done so many times."""
    start = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - start) / times


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """The ratios beside those of the source, whose problem has the condition number 1."""
    for row in found:
        if row.get("problem") != "quadratic" or row.get("condition", 1.0) != 1.0:
            continue
        published = PRODUCTS if row["operation"] == "product" else SOLVES
        if row["d"] in published:
            quantity = f"seconds by HVP over those by GVP, {row['operation']}, {row['d']:,} weights"
            yield beside_published(quantity, row["hvp_over_gvp"], published[row["d"]], f"{SOURCE}, table 1")


def draw(found: Sequence[Row]) -> Any:
    """Seconds against weights: products on the left, solves on the right."""
    made = figure(11.0, 4.2, 2)
    measured = [row for row in found if "problem" in row]
    for panel, operation in zip(made.axes, ("product", "solve"), strict=True):
        own = [row for row in measured if row["operation"] == operation]
        for (problem, condition), each in grouped(own, "problem", "condition").items():
            for way in ("gvp", "hvp", "explicit"):
                line = [row for row in each if f"{way}_seconds" in row]
                if line:
                    label = f"{problem}, {way}" + (f", κ = {condition:g}" if condition else "")
                    curve(panel, line, "d", f"{way}_seconds", markersize=3, linewidth=1.2, label=label)
        panel.set(xscale="log", yscale="log", xlabel="weights d", ylabel="processor seconds", title=operation)
        panel.legend(frameon=False, fontsize=7)
    return made
