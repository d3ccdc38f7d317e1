"""Sums over the data: chunks that fit, and everything kept or nothing."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lapwing.ground.data import Batch, Data
from lapwing.jacobian.products.costs import Form
from lapwing.jacobian.products.products import Executor, Prepared, Store, even, parts, total


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


class Sum(Executor[Prepared]):
    """Multiplies by the sum of the inputs."""

    def __init__(self, form: Form, size: int | None) -> None:
        self.form = form
        self.bytes = size
        self.made = 0

    def size(self, examples: int) -> int:
        return 2

    def prepare(self, batch: Batch) -> Prepared:
        assert isinstance(batch.inputs, Tensor)
        scale = batch.inputs.sum()
        self.made += 1
        return Prepared(lambda block: scale * block, self.bytes)


def run(store: Store[Prepared], executor: Executor[Prepared], source: Source, memory: int = 800) -> Tensor:
    return total(store.visit(executor, Data(source), memory), torch.ones(1, 2))


def test_what_fits_is_kept_and_the_data_read_once() -> None:
    store, source, executor = Store[Prepared](), Source(), Sum("split", 100)
    for _ in range(3):
        torch.testing.assert_close(run(store, executor, source), torch.full((1, 2), 444.0))
    assert (executor.made, source.readings) == (6, 1)


def test_what_does_not_fit_is_not_kept_in_part() -> None:
    store, source, executor = Store[Prepared](), Source(), Sum("split", 100)
    for reading in (1, 2):
        torch.testing.assert_close(run(store, executor, source, 600), torch.full((1, 2), 444.0))
        assert (executor.made, source.readings, store.kept) == (6 * reading, reading, {})


def test_what_did_not_fit_is_not_gathered_a_second_time() -> None:
    store, source, executor = Store[Prepared](), Source(), Sum("split", 100)

    def most_alive() -> int:
        seen: list[weakref.ref[Prepared]] = []
        alive = 0
        for chunk in store.visit(executor, Data(source), 600):
            seen.append(weakref.ref(chunk))
            alive = max(alive, sum(each() is not None for each in seen))
        return alive

    assert most_alive() == 5, "as many as fit into 600 bytes less an eighth"
    assert most_alive() == 1


def test_what_saves_nothing_is_not_kept() -> None:
    store, source = Store[Prepared](), Source()
    run(store, Sum("plain", None), source)
    assert not store.kept


def test_two_forms_are_kept_where_both_fit() -> None:
    store, source, split, layers = Store[Prepared](), Source(), Sum("split", 100), Sum("layers", 50)
    for executor in (split, layers, split, layers):
        torch.testing.assert_close(run(store, executor, source, 1200), torch.full((1, 2), 444.0))
    assert (split.made, layers.made, source.readings, store.bytes) == (6, 6, 2, 900)


def test_where_they_do_not_one_form_is_kept_at_a_time() -> None:
    store, source, split, layers = Store[Prepared](), Source(), Sum("split", 100), Sum("layers", 50)
    run(store, split, source)
    run(store, layers, source)
    assert store.chunks("layers") is not None and store.chunks("split") is None
    run(store, split, source)
    assert (split.made, layers.made, source.readings) == (12, 6, 3)


def test_a_product_that_was_interrupted_leaves_nothing_half() -> None:
    store, source, executor = Store[Prepared](), Source(), Sum("split", 100)
    visit = store.visit(executor, Data(source), 800)
    next(visit)
    visit.close()
    torch.testing.assert_close(run(store, executor, source), torch.full((1, 2), 444.0))


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
