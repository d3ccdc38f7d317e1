"""A parameter that moves the outputs and has no Jacobian is named; one that is merely at rest is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lapwing as lw
from tests.posterior_cases import labels, normal, seeded

X, Y = normal(9, 3), labels(9, classes=3)


class Again(torch.autograd.Function):
    """A checkpoint of one's own, whose backward pass computes the function again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, body: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.body = body
        ctx.save_for_backward(x)
        with torch.no_grad():
            return body(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            given = x.detach().requires_grad_()
            torch.autograd.backward(ctx.body(given), grads)
        return given.grad, None


class Rounded(nn.Linear):
    """A layer with its weights on a grid."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, torch.round(self.weight * 2**20) / 2**20, self.bias)


class Network(nn.Module):
    """A first layer, a body called in some way, and a head."""

    def __init__(self, way: Callable[[nn.Module, Tensor], Tensor], body: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.body, self.head = nn.Linear(3, 5), body or nn.Linear(5, 4), nn.Linear(4, 3)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.way(self.body, torch.tanh(self.first(x)))))


def without_gradient(body: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return body(x)


HIDDEN: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "checkpoint of one's own": (lambda: Network(lambda f, x: Again.apply(x, f)), ("body.weight", "body.bias")),
    "no_grad": (lambda: Network(without_gradient), ("first.weight", "first.bias", "body.weight", "body.bias")),
    "detach": (lambda: Network(lambda f, x: f(x).detach()), ("first.weight", "first.bias", "body.weight", "body.bias")),
    "rounding": (lambda: Network(lambda f, x: f(x), Rounded(5, 4)), ("body.weight",)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("structure", [lw.KFAC(), lw.MatrixFree()], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("kind", list(HIDDEN))
def test_what_the_outputs_depend_on_without_a_derivative_is_named(kind: str, structure: Any, dtype: Any) -> None:
    build, names = HIDDEN[kind]
    with pytest.warns(lw.NetworkWarning, match=f"depend on {', '.join(names)} and no derivative"):
        lw.Laplace(lw.Categorical(), structure=structure).fit(seeded(build).to(dtype), (X.to(dtype), Y))


def test_of_many_some_are_named_and_all_are_counted() -> None:
    def build() -> nn.Module:
        return Network(without_gradient, nn.Sequential(nn.Linear(5, 4), *(nn.Linear(4, 4) for _ in range(9))))

    fragment = r"body\.1\.bias|body\.0\.weight.* and 11 more, perhaps on some of 6 more that were not tried,"
    with pytest.warns(lw.NetworkWarning, match=fragment):
        lw.Laplace(lw.Categorical(), structure=lw.Diagonal()).fit(seeded(build), (X, Y))


class Squared(nn.Linear):
    """A layer that stands at the lowest point of what it adds."""

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.linear(x, self.weight.square(), self.bias)


def dead() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    nn.init.constant_(model[0].bias, -100.0)  # type: ignore[arg-type]
    return model


def adapter() -> nn.Module:
    """The product of a matrix and one that starts at zero, whose gradient is zero."""
    body = nn.Sequential(nn.Linear(5, 2), nn.Linear(2, 4))
    nn.init.zeros_(body[1].weight)  # type: ignore[arg-type]
    return Network(lambda f, x: f(x), body)


def resting() -> nn.Module:
    body = Squared(4, 4)
    nn.init.zeros_(body.weight)
    return Network(lambda f, x: f(x), nn.Sequential(nn.Linear(5, 4), body))


def unused() -> nn.Module:
    return Network(lambda f, x: x[:, :4])


@pytest.mark.parametrize(
    "build", [dead, adapter, resting, unused, lambda: Network(lambda f, x: checkpoint(f, x, use_reentrant=True))]
)
def test_what_has_no_part_in_them_or_is_at_rest_is_not(build: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", lw.NetworkWarning)
        posterior = lw.Laplace(lw.Categorical(), structure=lw.Diagonal()).fit(seeded(build), (X, Y))
    assert float(posterior.predict(X).logits.variance.min()) > 0


def test_what_is_known_already_is_not() -> None:
    model = seeded(HIDDEN["no_grad"][0])
    for name in ("first", "body"):
        model.get_submodule(name).requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", lw.NetworkWarning)
        posterior = lw.Laplace(lw.Categorical()).fit(model, (X, Y))
    assert not any(name.startswith(("first", "body")) for name in posterior.network.names)
