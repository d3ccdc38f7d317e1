"""What the cost study measures, inside a process of its own.

``quadratic`` is the source's problem with a spectrum of its own: outputs ``2 θ + 0.5``, loss ``Σ s_i f_i²``, so that
the Hessian and the Gauss-Newton matrix are ``diag(8 s)``; s falls from 1 to 1/κ where the source has κ = 1, with which
conjugate gradients end after one step. ``network`` is a perceptron with one hidden layer of about √d units and 32
random examples, whose Λ = G + αI has the condition number κ through its prior precision α.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.data import generator
from benchmarks.meter import Meter
from benchmarks.networks import perceptron
from lapwing.ground import probes
from lapwing.ground.data import Data
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.hessian import HessianProduct
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.jacobian.survey import surveyed
from lapwing.likelihoods import Gaussian
from lapwing.linalg import FunctionOperator, Operator
from lapwing.linalg.cg import conjugate_gradients
from lapwing.linalg.contour import spectral_interval
from lapwing.linear.gauss_newton import GGNProduct

EXAMPLES = 32
RTOL = 1e-5
CONDITIONS = (1.0, 1e2, 1e4)
"""Condition numbers of the solves; the first is that of the product too."""

RUNS, BUDGET = 5, 30.0
"""Most timed runs of each, after one to warm up, and seconds after which no further run is begun."""


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
        return GGNProduct(Linearisation(given)) if way == "ggn" else HessianProduct(given)

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
