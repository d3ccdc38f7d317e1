"""A chunk of a linear model, points and lines in its weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.likelihoods import Categorical, Poisson
from lapwing.linear.model import Chunk
from lapwing.linear.shift import Ray, Shift, signature


class Given:
    """A linear network of given numbers, which counts what is pushed."""

    def __init__(self, generator: torch.Generator, n: int = 4) -> None:
        self.j = torch.randn(n, 3, 5, generator=generator, dtype=torch.float64)
        self.f = torch.randn(n, 3, generator=generator, dtype=torch.float64)
        self.x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
        self.pushed = 0

    def linear(self, targets: Tensor) -> Chunk:
        def push(block: Tensor) -> Tensor:
            self.pushed += 1
            return (self.j @ block).movedim(-1, 0)

        pull = lambda u: torch.einsum("knc,ncd->dk", u, self.j)  # noqa: E731
        return Chunk(self.x, self.f, targets, push, pull, 2, None)


def test_outputs_are_computed_once_and_found_again_in_any_order(generator: torch.Generator) -> None:
    chunks = [Given(generator) for _ in range(3)]
    linear = [chunk.linear(torch.zeros(4, dtype=torch.long)) for chunk in chunks]
    v = torch.randn(5, generator=generator, dtype=torch.float64)
    shift = Shift(v, True, 2**20)
    for order in ((0, 1, 2), (2, 0, 1)):
        for i in order:
            torch.testing.assert_close(shift.outputs(linear[i]), chunks[i].f + chunks[i].j @ v)
    assert [chunk.pushed for chunk in chunks] == [1, 1, 1]
    bare = Shift(v, False, 4 * 3 * 8)  # room for one chunk
    for _ in range(2):
        for chunk, known in zip(chunks, linear, strict=True):
            torch.testing.assert_close(bare.outputs(known), chunk.j @ v)
    assert [chunk.pushed for chunk in chunks] == [2, 3, 3]


def test_products_take_a_few_columns_at_a_time(generator: torch.Generator) -> None:
    chunk = Given(generator)
    block = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    product = chunk.linear(torch.zeros(4, dtype=torch.long)).product(lambda u: 2.0 * u, block)
    flat = chunk.j.flatten(0, 1)
    torch.testing.assert_close(product, 2.0 * flat.mT @ flat @ block)
    assert chunk.pushed == 2


@pytest.mark.parametrize("likelihood", [Categorical(), Poisson()])
def test_a_ray_knows_the_loss_along_it(likelihood: Categorical | Poisson, generator: torch.Generator) -> None:
    chunks = [Given(generator), Given(generator, 3)]
    counts = isinstance(likelihood, Poisson)
    targets = [torch.ones(len(c.f), 3).double() if counts else torch.arange(len(c.f)) % 3 for c in chunks]
    linear = [chunk.linear(y) for chunk, y in zip(chunks, targets, strict=True)]
    v, p = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    ray = Ray.of(linear, Shift(v, True, 2**20), p)
    assert ray is not None

    def loss(t: Tensor) -> Tensor:
        outputs = [chunk.f + chunk.j @ (v + t * p) for chunk in chunks]
        return torch.stack([likelihood.nll(h, y).sum() for h, y in zip(outputs, targets, strict=True)]).sum()

    for length in (0.0, 0.7):
        t = torch.tensor(length, dtype=torch.float64)
        assert ray.loss(likelihood, length) == pytest.approx(float(loss(t)))
        assert ray.slope(likelihood, length) == pytest.approx(float(torch.func.grad(loss)(t)))
    pushed, end = [chunk.pushed for chunk in chunks], ray.end(0.7)
    for chunk, known in zip(chunks, linear, strict=True):
        torch.testing.assert_close(end.outputs(known), chunk.f + chunk.j @ (v + 0.7 * p))
    assert [chunk.pushed for chunk in chunks] == pushed
    torch.testing.assert_close(end.change, v + 0.7 * p)


def test_outputs_that_do_not_fit_have_no_ray(generator: torch.Generator) -> None:
    linear = [Given(generator).linear(torch.zeros(4, dtype=torch.long)) for _ in range(3)]
    size = 2 * 4 * 3 * 8
    v = torch.zeros(5, dtype=torch.float64)
    assert Ray.of(linear, Shift(v, True, 3 * size - 1), v) is None
    assert Ray.of(linear, Shift(v, True, 3 * size), v) is not None


def test_signatures_tell_examples_and_their_order_apart() -> None:
    x = torch.randn(5, 3)
    others = [x.flip(0), x[:4], x + 1e-6, {"a": x, "b": x[:, :1]}, (x, torch.zeros(5, 2))]
    assert signature(x) == signature(x.clone())
    assert len({signature(inputs) for inputs in [x, *others]}) == 6
