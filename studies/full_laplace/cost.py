"""Seconds and memory of products and solves against the number of weights (Brack 2023, section 5.1, table 1).

``quadratic`` is the source's problem with a spectrum of its own: outputs ``2 θ + 0.5``, loss ``Σ s_i f_i²``, so that
the Hessian and the Gauss-Newton matrix are ``diag(8 s)``; s falls from 1 to 1/κ where the source has κ = 1, with which
conjugate gradients end after one step. ``network`` is a perceptron with one hidden layer of about √d units and 32
random examples, whose Λ = G + αI has the condition number κ through its prior precision α.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.command import Setting
from benchmarks.data import generator
from benchmarks.measure import Step, run_isolated
from benchmarks.meter import Meter
from benchmarks.networks import perceptron
from benchmarks.report import Row, curve, figure, grouped
from lapwing.ground import probes
from lapwing.ground.data.sources import Data
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.hessian import hessian_product
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.jacobian.survey import surveyed
from lapwing.likelihoods import Gaussian
from lapwing.linalg import FunctionOperator, Operator
from lapwing.linalg.cg import conjugate_gradients
from lapwing.linalg.contour import spectral_interval
from lapwing.linear.gauss_newton import GGNProduct

FORMS = {"quadratic": ("ggn", "hessian", "explicit"), "network": ("ggn", "hessian")}
"""What is differentiated, and in which ways."""

EXAMPLES = 32
RTOL = 1e-5
CONDITIONS = (1.0, 1e2, 1e4)
"""Condition numbers of the solves; the first is that of the product too."""

RUNS, BUDGET = 5, 30.0
"""Most timed runs of each, after one to warm up, and seconds after which no further run is begun."""


def rows(setting: Setting) -> Iterator[Row]:
    """One row for each form, way, number of weights, operation and condition number.

    Each form, way and number of weights runs in a process of its own, with a limit on its memory on the CPU; what
    takes it down or takes too long ends up in its rows.
    """
    top = 9 if setting.device.startswith("cuda") else 7
    sizes = (1000,) if setting.quick else tuple(10**k for k in range(1, top + 1))
    for form, ways in FORMS.items():
        for way in ways[:1] if setting.quick else ways:
            for size in (*sizes, 30_000) if way == "explicit" else sizes:
                yield from measured(setting, form, way, size)


def measured(setting: Setting, form: str, way: str, size: int) -> list[Row]:
    """The rows of one process."""
    case: Row = {"form": form, "way": way, "device": setting.device}
    steps = run_isolated(work, timeout=200.0, size=size, quick=setting.quick, **case)
    d = next((step.facts["d"] for step in steps if "d" in step.facts), size)
    return [case | {"d": d} | row for row in summarised(steps)]


def summarised(steps: Sequence[Step]) -> list[Row]:
    """Mean and standard deviation over the runs of each operation, warm-up left out; why there are none, if so.

    Args:
        steps: Named ``operation`` or ``operation at condition``, labelled by the run; a run labelled ``warm-up`` does
            not count.
    """
    found: list[Row] = []
    for name in dict.fromkeys(step.name for step in steps):
        own = [step for step in steps if step.name == name]
        timed = [step for step in own if step.seconds is not None and step.label != "warm-up"]
        failed = [step for step in own if step.seconds is None]
        seconds = [step.seconds for step in timed if step.seconds is not None]
        operation, _, condition = name.partition(" at condition ")
        found.append(
            {
                "operation": operation,
                "condition": float(condition) if condition else None,
                "seconds": statistics.mean(seconds) if seconds else None,
                "seconds_std": statistics.stdev(seconds) if len(seconds) > 1 else None,
                "runs": len(seconds),
                "peak_mib": max((step.peak_mib for step in timed if step.peak_mib is not None), default=None),
                **own[0].facts,
                "failure": failed[0].note if failed else "",
            }
        )
    return found


def work(meter: Meter, *, form: str, way: str, size: int, device: str, quick: bool) -> None:
    """Products and solves in one form, in one way, at one number of weights.

    Args:
        meter: Where they are timed.
        form: ``"quadratic"`` or ``"network"``.
        way: ``"ggn"`` and ``"hessian"`` by products, or the ``"explicit"`` matrix.
        size: Weights, about.
        device: Where.
        quick: Whether few condition numbers, runs and seconds must do, and a small explicit matrix.
    """
    conditions, runs, budget = (CONDITIONS[:2], 2, 2.0) if quick else (CONDITIONS, RUNS, BUDGET)
    explicit_gib = 1e-3 if quick else 100.0 if device.startswith("cuda") else 8.0

    def timed(name: str, once: Callable[[], Any]) -> Any:
        """Once to warm up, then until the runs or the budget are spent; what the last run returned."""
        first = meter.step(name, once, label="warm-up")
        turns = iter(range(runs))

        def again() -> bool:
            return not meter.step(name, once, label=f"run {next(turns)}").failure

        if not first.failure:
            meter.ready()  # what the first call loaded or kept is not the memory of the others
            meter.rounds(again, budget=budget, most=runs)
        return first.value

    if form == "quadratic":
        gradient, product_at, d = None, lambda condition: quadratic(way, size, condition, device), size
    else:
        gradient, product_at, d = network(way, size, device)
        meter.tell("gradient", d=d)
    vector = probes.gaussian((d,), like=torch.empty(0, device=device), generator=generator())
    meter.ready()
    if gradient is not None:
        timed("gradient", gradient)
    operator = product_at(conditions[0])
    if way == "explicit":
        explicit(meter, timed, operator, vector, int(explicit_gib * 2**30))
        return
    timed("product", lambda: operator @ vector)
    if form == "network" and way == "hessian":
        return  # away from a minimum it is not positive definite
    for condition in conditions:
        name = f"solve at condition {condition:g}"
        made = product_at(condition) if form == "quadratic" else None
        made = made or meter.step(name, lambda at=condition: shifted(operator, at), label="warm-up").value
        if made is None:
            continue
        solution = timed(name, lambda at=made: conjugate_gradients(at, vector, rtol=RTOL))
        if solution is not None:
            residual = float(solution.residual.max())
            meter.tell(name, iterations=solution.iterations, residual=residual, stopped=solution.stopped)


def quadratic(way: str, size: int, condition: float, device: str) -> Operator:
    """``diag(8 s)`` by automatic differentiation of the source's problem."""
    from torch.func import grad, jvp, vjp, vmap  # noqa: TID251, the bare products are what is timed

    scale = torch.logspace(0.0, -math.log10(condition), size, device=device)
    point = torch.linspace(-1.0, 1.0, size, device=device)

    def outputs(theta: Tensor) -> Tensor:
        return 2 * theta + 0.5

    def loss(f: Tensor) -> Tensor:
        return (scale * f.square()).sum()

    def ggn(v: Tensor) -> Tensor:
        f, tangent = jvp(outputs, (point,), (v,))
        curved = jvp(grad(loss), (f,), (tangent,))[1]
        return vjp(outputs, point)[1](curved)[0]

    def hessian(v: Tensor) -> Tensor:
        return jvp(grad(lambda theta: loss(outputs(theta))), (point,), (v,))[1]

    one = ggn if way == "ggn" else hessian

    def block(columns: Tensor) -> Tensor:
        if columns.shape[1] == 1:
            return one(columns[:, 0])[:, None]
        return vmap(one, in_dims=1, out_dims=1, chunk_size=64)(columns)

    return FunctionOperator(block, block, (size, size), point)


def network(way: str, size: int, device: str) -> tuple[Callable[[], Any], Callable[[float], Operator], int]:
    """A gradient, the product with the curvature, and the number of weights of a perceptron."""
    side = max(2, round(size**0.5))
    width = max(1, round((size - 1) / (side + 2)))
    model = perceptron(side, width, 1).to(device)
    x, y = torch.randn(EXAMPLES, side, generator=generator()), torch.randn(EXAMPLES, 1, generator=generator(1))
    net, data = Network.of(model), Data((x, y), like=next(model.parameters()).detach())
    weights = list(model.parameters())

    def gradient() -> tuple[Tensor, ...]:
        return torch.autograd.grad((model(x.to(device)) - y.to(device)).square().sum(), weights)

    def product(_: float) -> Operator:
        given = surveyed(net, Gaussian(), data)
        return GGNProduct(Linearisation(given)) if way == "ggn" else hessian_product(given)

    return gradient, product, net.size


def shifted(curvature: Operator, condition: float) -> Operator:
    """``G + α I`` with the prior precision α that gives it about the condition number, or a little less."""
    largest = spectral_interval(curvature, steps=30, margin=1.01, generator=generator())[1]
    alpha = largest / max(condition - 1, 1e-2)
    like = torch.empty(0, dtype=curvature.dtype, device=curvature.device)

    def product(block: Tensor) -> Tensor:
        return curvature @ block + alpha * block

    return FunctionOperator(product, product, curvature.shape, like)


def explicit(
    meter: Meter,
    timed: Callable[[str, Callable[[], Any]], Any],
    operator: Operator,
    vector: Tensor,
    max_bytes: int,
) -> None:
    """The matrix itself: built once, then multiplied and solved with; the solve factorises it every time."""
    meter.step("build", lambda: operator @ vector[:, None].expand(-1, 2), label="warm-up")
    meter.ready()
    built = meter.step("build", lambda: operator.dense(max_bytes), label="run 0")
    if built.value is None:
        for name in ("product", "solve at condition 1"):
            meter.step(name, lambda: refuse(built.failure))
        return
    matrix = built.value
    timed("product", lambda: matrix @ vector)

    def solve() -> Tensor:
        return torch.cholesky_solve(vector[:, None], torch.linalg.cholesky(matrix))[:, 0]

    x = timed("solve at condition 1", solve)
    if x is not None:
        meter.tell("solve at condition 1", residual=float((matrix @ x - vector).norm() / vector.norm()))


def refuse(reason: str) -> None:
    """Say why there is no matrix to work with."""
    raise RuntimeError(f"no matrix, because: {reason}")


def draw(found: Sequence[Row]) -> Any:
    """Seconds against weights: products on the left, solves on the right; a cross where a way fails."""
    made = figure(11.0, 4.2, 2)
    for panel, operation in zip(made.axes, ("product", "solve"), strict=True):
        own = [row for row in found if row["operation"] == operation]
        for (form, way, condition), each in grouped(own, "form", "way", "condition").items():
            line = [row | {"seconds_error": row["seconds_std"]} for row in each if row["seconds"]]
            label = f"{form}, {way}" + (f", κ = {condition:g}" if condition else "")
            curve(panel, line, "d", "seconds", markersize=3, linewidth=1.2, label=label)
        panel.set(xscale="log", yscale="log", xlabel="weights d", ylabel="seconds", title=operation)
        panel.legend(frameon=False, fontsize=7)
    return made
