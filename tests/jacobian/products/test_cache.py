"""Chunks of the data that are kept between products: those that fit, all of them or none."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lapwing.ground.data.sources import Batch, Data
from lapwing.jacobian.products.cache import Cache, even, parts
from lapwing.jacobian.products.strategy import Strategy


class Source:
    """Three batches, in another order each time; counts how often it is read."""

    def __init__(self) -> None:
        self.readings = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.readings += 1
        batches = [torch.full((4, 1), 10.0**i) for i in range(3)]
        for i in range(3):
            batch = batches[(i + self.readings) % 3]
            yield batch, batch


class Sum:
    """The sum of the inputs, two examples at a time, counted."""

    def __init__(self, strategy: Strategy, size: int | None) -> None:
        self.strategy, self.size, self.made = strategy, size, 0

    def prepare(self, batch: Batch) -> tuple[Tensor, int | None]:
        assert isinstance(batch.inputs, Tensor)
        self.made += 1
        return batch.inputs.sum(), self.size

    def visit(self, cache: Cache[Tensor], source: Source) -> Iterator[Tensor]:
        return cache.visit(self.strategy, Data(source), 2, self.prepare)


def run(cache: Cache[Tensor], executor: Sum, source: Source) -> float:
    return sum(float(chunk) for chunk in executor.visit(cache, source))


def test_what_fits_is_kept_and_the_data_read_once() -> None:
    cache, source, executor = Cache[Tensor](800), Source(), Sum("traced", 100)
    for _ in range(3):
        assert run(cache, executor, source) == 444.0
    assert (executor.made, source.readings) == (6, 1)


def test_what_does_not_fit_is_not_kept_in_part() -> None:
    cache, source, executor = Cache[Tensor](600), Source(), Sum("traced", 100)
    for reading in (1, 2):
        assert run(cache, executor, source) == 444.0
        assert (executor.made, source.readings, cache.chunks) == (6 * reading, reading, {})


def test_what_did_not_fit_is_not_gathered_a_second_time() -> None:
    cache, source, executor = Cache[Tensor](600), Source(), Sum("traced", 100)

    def most_alive() -> int:
        seen: list[weakref.ref[Tensor]] = []
        alive = 0
        for chunk in executor.visit(cache, source):
            seen.append(weakref.ref(chunk))
            alive = max(alive, sum(each() is not None for each in seen))
        return alive

    assert most_alive() == 5, "as many as fit into 600 bytes less an eighth"
    assert most_alive() == 1


def test_what_saves_nothing_is_not_kept() -> None:
    cache, source = Cache[Tensor](800), Source()
    run(cache, Sum("autodiff", None), source)
    assert not cache.chunks


def test_two_strategies_are_kept_where_both_fit() -> None:
    cache, source, traced, explicit = Cache[Tensor](1200), Source(), Sum("traced", 100), Sum("explicit", 50)
    for executor in (traced, explicit, traced, explicit):
        assert run(cache, executor, source) == 444.0
    assert (traced.made, explicit.made, source.readings, cache.bytes) == (6, 6, 2, 900)


def test_where_they_do_not_one_strategy_is_kept_at_a_time() -> None:
    cache, source, traced, explicit = Cache[Tensor](800), Source(), Sum("traced", 100), Sum("explicit", 50)
    run(cache, traced, source)
    run(cache, explicit, source)
    assert set(cache.chunks) == {"explicit"}
    run(cache, traced, source)
    assert (traced.made, explicit.made, source.readings) == (12, 6, 3)


def test_a_product_that_was_interrupted_leaves_nothing_half() -> None:
    cache, source, executor = Cache[Tensor](800), Source(), Sum("traced", 100)
    visit = executor.visit(cache, source)
    next(visit)
    visit.close()
    assert run(cache, executor, source) == 444.0


@pytest.mark.parametrize(
    ("examples", "size", "lengths"), [(10, 4, [2] * 5), (12, 5, [4] * 3), (7, 4, [4, 3]), (3, 9, [3])]
)
def test_chunks_are_alike_where_they_can_be(examples: int, size: int, lengths: list[int]) -> None:
    if examples == 10:
        assert even(examples, size) == 2
    x = torch.arange(examples)
    pieces = list(parts(Batch(x, x), size))
    assert [len(piece) for piece in pieces] == lengths
    assert torch.equal(torch.cat([piece.targets for piece in pieces]), x)
