"""Plain reverse mode, and networks that nothing else differentiates, against twins of ordinary operations."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import lapwing as lw
from lapwing.ground.data.sources import Batch
from lapwing.ground.errors import UnsupportedError
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products import autodiff_jacobian
from lapwing.jacobian.products.autodiff_jacobian import Columnwise, Reverse
from lapwing.jacobian.products.copies import Copies
from lapwing.jacobian.products.hessian import hessian_product
from tests.curvature.naive import surveyed
from tests.curvature.unchanged import unchanged
from tests.modules import Squared
from tests.posterior_cases import labels, normal, refused, seeded


class Silu(torch.autograd.Function):
    """``x σ(x)``, written before ``setup_context`` was."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        share = x.sigmoid()
        return grad * (share + x * share * (1 - share))


class Once(torch.autograd.Function):
    """The same, its gradient made of numbers alone."""

    forward = Silu.forward

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return Silu.backward(ctx, grad)


class Applied(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x)


def twin(kind: str) -> nn.Module:
    """One network: of ordinary operations, of a classic function, or with hooks that double gradients."""
    between = {"classic": Applied(Silu), "once": Applied(Once)}.get(kind, nn.SiLU())
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), between, nn.Linear(4, 3)))
    if kind == "hooked":
        model[1].register_full_backward_hook(lambda _, grads, outer: (2 * grads[0],))
        model[1].register_full_backward_pre_hook(lambda _, outer: (2 * outer[0],))
    return model


X, Y = normal(6, 3), labels(6, classes=3)


def test_push_and_pull_are_the_jacobian_and_its_adjoint() -> None:
    weights, constant = normal(3), normal(2)
    there = Reverse(lambda w: torch.stack([w.prod(), w[0].square(), w[1] * 3]), weights)
    a, b, c = weights.tolist()
    jacobian = torch.tensor([[b * c, a * c, a * b], [2 * a, 0, 0], [0, 3, 0]], dtype=torch.float64)
    torch.testing.assert_close(torch.stack([there.pull(u) for u in torch.eye(3).double()]), jacobian)
    torch.testing.assert_close(torch.stack([there.push(v) for v in torch.eye(3).double()], 1), jacobian)
    nothing = Reverse(lambda w: constant, weights)
    assert nothing.pull(constant).tolist() == [0.0] * 3 and nothing.push(weights).tolist() == [0.0] * 2


@pytest.mark.parametrize("kind", ["classic", "hooked"])
@pytest.mark.no_cover
def test_every_derivative_is_that_of_the_ordinary_twin(kind: str) -> None:
    found = []
    for name in ("ordinary", kind):
        model = twin(name)
        network = Network.of(model)
        given = surveyed(network, lw.Categorical(), X, Y)
        directions, moved = normal(network.size, 2, seed=3), normal(2, 6, 3, seed=4)
        columns, weights = Columnwise(given, X), network.weights + 0.1 * directions.mT
        with unchanged(model):
            products = [columns.push(directions), columns.pull(moved)]
            products += [hessian_product(given, way) @ directions for way in ("traced", "autodiff")]
            copies = Copies(given)
            found.append([*products, copies.outputs(weights, X), copies.gradients(weights, Batch(X, Y))])
    for ours, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, theirs)


def test_every_posterior_and_its_tuning_are_those_of_the_ordinary_twin() -> None:
    found = []
    for name in ("ordinary", "classic"):
        model, values = twin(name), list[Tensor]()
        for structure in (lw.MatrixFree(), lw.LowRank(5), lw.Sampled(4, seed=1), lw.Full(view="weights")):
            curvature = lw.Hessian(damping=9.0) if isinstance(structure, lw.Full) else lw.GGN()
            recipe = lw.Laplace(lw.Categorical(), structure=structure, curvature=curvature)
            values.append(recipe.fit(model, (X, Y)).predict(X, "probit").probs)
        posterior = lw.Laplace(lw.Categorical(), structure=lw.KFAC()).fit(model, (X, Y))
        values.append(lw.tune(posterior, lw.ELBO(steps=2)).prior_precisions)
        free = lw.HessianFree(lw.Categorical(), prior=lw.Isotropic(9.0), fits=lw.hessian_free.Probed(probes=2))
        values.append(free.fit(model, (X, Y), points=X[:1]).predict(X[:1]).probs)
        found.append(values)
    for ours, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_gradients_that_cannot_be_differentiated_again_get_a_sentence() -> None:
    """Autograd would take the second derivative for zero."""
    network = Network.of(twin("once"))
    given = surveyed(network, lw.Categorical(), X, Y)
    columns = Columnwise(given, X)
    moved = normal(2, 6, 3)
    expected = Columnwise(surveyed(Network.of(twin("ordinary")), lw.Categorical(), X), X).pull(moved)
    torch.testing.assert_close(columns.pull(moved), expected)
    directions = normal(network.size, 2)
    with refused(UnsupportedError, "forward-mode derivative"):
        columns.push(directions)
    with refused(UnsupportedError, "forward-mode derivative"):
        _ = hessian_product(given) @ directions
    unknown = Reverse(nn.functional.hardsigmoid, normal(3))
    with refused(UnsupportedError, "forward-mode derivative"):
        unknown.push(normal(3))


def test_running_out_of_memory_is_said_and_not_gone_around(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    x = torch.ones(3, 2)
    products = Columnwise(surveyed(Network.of(torch.nn.Linear(2, 1)), lw.Gaussian(), x), x)
    block = torch.ones(3, 1)
    whole = products.push(block)
    monkeypatch.setattr(autodiff_jacobian, "vmap", exhausted)
    with pytest.raises(torch.OutOfMemoryError):
        products.push(block)
    assert whole.flatten().tolist() == [3.0, 3.0, 3.0]


def test_what_it_costs_without_forward_mode_is_said_once_a_network(caplog: pytest.LogCaptureFixture) -> None:
    network = Network.of(Squared(custom=True))
    x = torch.ones(4, 3)
    model = surveyed(network, lw.Gaussian(), x)
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "lapwing"):
        for products in (Columnwise(model, x) for _ in range(2)):
            products.push(torch.ones(network.size, 1))
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "two backward passes" in caplog.records[0].message


def test_a_network_with_a_forward_mode_is_pushed_by_it(caplog: pytest.LogCaptureFixture) -> None:
    network = Network.of(torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 1)))
    x = torch.ones(3, 2)
    model = surveyed(network, lw.Gaussian(), x)
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "lapwing"):
        Columnwise(model, x).push(torch.ones(network.size, 1))
    assert not caplog.records
