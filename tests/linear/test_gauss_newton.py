"""The curvature of a linear model with its output Hessian taken elsewhere: outputs are computed once, in any order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
import torch
from torch import Tensor

from lapwing.linear.gauss_newton import GGNProduct, ggn_product, signature
from lapwing.linear.model import Chunk, LinearModel


class Given:
    """A linear network of given numbers, which counts what is pushed."""

    def __init__(self, generator: torch.Generator, n: int = 4) -> None:
        self.j = torch.randn(n, 3, 5, generator=generator, dtype=torch.float64)
        self.f = torch.randn(n, 3, generator=generator, dtype=torch.float64)
        self.x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
        self.pushed = 0

    def chunk(self) -> Chunk:
        def push(block: Tensor) -> Tensor:
            self.pushed += 1
            return (self.j @ block).movedim(-1, 0)

        pull = lambda u: torch.einsum("knc,ncd->dk", u, self.j)  # noqa: E731
        return Chunk(self.x, self.f, torch.zeros(len(self.f), dtype=torch.long), push, pull, 2)


class Shuffled:
    """A model made of them, in another order in each pass."""

    likelihood = data = layout = event = is_cached = on = rows = diagonal = check = "not asked for"

    def __init__(self, *parts: Given) -> None:
        self.parts, self.weights, self.passes = parts, torch.full((5,), 0.3, dtype=torch.float64), 0

    def visit(self, columns: int = 1) -> Iterator[Chunk]:
        self.passes += 1
        return (self.parts[(i + self.passes) % len(self.parts)].chunk() for i in range(len(self.parts)))


@pytest.mark.parametrize(("affine", "room", "pushed"), [(True, 2**20, 3), (False, 2**20, 3), (True, 4 * 3 * 8, 5)])
def test_outputs_are_computed_once_and_found_again_in_any_order(
    affine: bool, room: int, pushed: int, generator: torch.Generator
) -> None:
    parts = [Given(generator) for _ in range(3)]
    model = Shuffled(*parts)
    w = torch.randn(5, generator=generator, dtype=torch.float64)
    curvature = GGNProduct(cast("LinearModel", model), w, affine, spare=room)
    for _ in range(2):
        for chunk, h in curvature.visit():
            (part,) = [part for part in parts if part.x is chunk.inputs]
            torch.testing.assert_close(h, part.f + part.j @ (w - model.weights) if affine else part.j @ w)
    assert sum(part.pushed for part in parts) == pushed


def test_products_take_a_few_columns_at_a_time(generator: torch.Generator) -> None:
    part = Given(generator)
    block = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    flat = part.j.flatten(0, 1)
    torch.testing.assert_close(ggn_product(part.chunk(), lambda u: 2.0 * u, block), 2.0 * flat.mT @ flat @ block)
    assert part.pushed == 2


def test_signatures_tell_examples_and_their_order_apart() -> None:
    x = torch.randn(5, 3)
    others = [x.flip(0), x[:4], x + 1e-6, {"a": x, "b": x[:, :1]}, (x, torch.zeros(5, 2))]
    assert signature(x) == signature(x.clone())
    assert len({signature(inputs) for inputs in [x, *others]}) == 6
