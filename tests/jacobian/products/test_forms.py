"""The cost rule: what it counts on known networks, and what it chooses. Chunks: those that fit, all of them or none."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from benchmarks.networks import ResNet, lenet
from lapwing.ground.data.sources import Batch, Data
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.forms import PRODUCTS, Form, Store, Work, even, parts
from lapwing.likelihoods import Gaussian
from tests.curvature.naive import surveyed

GIB = 2**28
"""Numbers of four bytes in a GiB."""


def work_of(model: nn.Module, *shape: int) -> Work:
    x = torch.randn(2, *shape)
    given = surveyed(Network.of(model), Gaussian(), x)
    return Work(given, x, given.width)


LENET = work_of(lenet(), 1, 28, 28)
RESNET = work_of(ResNet(3), 3, 32, 32)
WIDE = work_of(nn.Sequential(nn.Linear(784, 37), nn.ReLU(), nn.Linear(37, 37), nn.ReLU(), nn.Linear(37, 10)), 784)


def test_a_forward_pass_is_counted() -> None:
    assert LENET.forward == 6 * 25 * 576 + 16 * 150 * 64 + 256 * 100 + 100 * 10
    assert LENET.first == 6 * 25 * 576
    assert LENET.layers.rows == 10 * (6 * 26 + 16 * 151) and LENET.cotangents == 10


def test_what_has_no_layers_is_counted_too() -> None:
    work = work_of(nn.Sequential(nn.ConvTranspose2d(1, 2, 3), nn.Flatten(), nn.Linear(50, 4)), 1, 3, 3)
    assert work.layers.rows == 4 * 20 and work.layers.building > 0 and work.forward >= 50 * 4


@pytest.mark.parametrize(
    ("work", "columns", "gib", "examples", "form"),
    [
        (LENET, 1, 2, 1000, "layers"),  # everything is kept
        (LENET, 32, 2, 1000, "layers"),
        (LENET, 1, 2, 100_000, "split"),  # 11 GB of rows are not
        (LENET, 64, 2, 100_000, "layers"),
        (RESNET, 1, 2, 1000, "split"),
        (RESNET, 32, 2, 1000, "layers"),
        (RESNET, 1, 2, 100, "layers"),
        (RESNET, 32, 0.01, 1000, "split"),  # the rows of one example are too many
        (WIDE, 1, 2, 1000, "split"),
        (WIDE, 32, 2, 1000, "layers"),
    ],
)
def test_the_choice(work: Work, columns: int, gib: float, examples: int, form: Form) -> None:
    assert work.choose(columns, int(gib * GIB), examples) == form


def test_more_columns_cost_more_and_keeping_saves() -> None:
    for form in ("layers", "split"):
        costs = [RESNET.cost(form, columns, kept=False) for columns in (5, 10, 20)]
        assert costs[0] < costs[1] < costs[2]
        saved = RESNET.cost(form, 5, kept=False) - RESNET.cost(form, 5, kept=True)
        assert saved >= RESNET.forward * (1 - 1 / PRODUCTS)


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

    def __init__(self, form: Form, size: int | None) -> None:
        self.form, self.size, self.made = form, size, 0

    def prepare(self, batch: Batch) -> tuple[Tensor, int | None]:
        assert isinstance(batch.inputs, Tensor)
        self.made += 1
        return batch.inputs.sum(), self.size

    def visit(self, store: Store[Tensor], source: Source) -> Iterator[Tensor]:
        return store.visit(self.form, Data(source), 2, self.prepare)


def run(store: Store[Tensor], executor: Sum, source: Source) -> float:
    return sum(float(chunk) for chunk in executor.visit(store, source))


def test_what_fits_is_kept_and_the_data_read_once() -> None:
    store, source, executor = Store[Tensor](800), Source(), Sum("split", 100)
    for _ in range(3):
        assert run(store, executor, source) == 444.0
    assert (executor.made, source.readings) == (6, 1)


def test_what_does_not_fit_is_not_kept_in_part() -> None:
    store, source, executor = Store[Tensor](600), Source(), Sum("split", 100)
    for reading in (1, 2):
        assert run(store, executor, source) == 444.0
        assert (executor.made, source.readings, store.kept) == (6 * reading, reading, {})


def test_what_did_not_fit_is_not_gathered_a_second_time() -> None:
    store, source, executor = Store[Tensor](600), Source(), Sum("split", 100)

    def most_alive() -> int:
        seen: list[weakref.ref[Tensor]] = []
        alive = 0
        for chunk in executor.visit(store, source):
            seen.append(weakref.ref(chunk))
            alive = max(alive, sum(each() is not None for each in seen))
        return alive

    assert most_alive() == 5, "as many as fit into 600 bytes less an eighth"
    assert most_alive() == 1


def test_what_saves_nothing_is_not_kept() -> None:
    store, source = Store[Tensor](800), Source()
    run(store, Sum("plain", None), source)
    assert not store.kept


def test_two_forms_are_kept_where_both_fit() -> None:
    store, source, split, layers = Store[Tensor](1200), Source(), Sum("split", 100), Sum("layers", 50)
    for executor in (split, layers, split, layers):
        assert run(store, executor, source) == 444.0
    assert (split.made, layers.made, source.readings, store.bytes) == (6, 6, 2, 900)


def test_where_they_do_not_one_form_is_kept_at_a_time() -> None:
    store, source, split, layers = Store[Tensor](800), Source(), Sum("split", 100), Sum("layers", 50)
    run(store, split, source)
    run(store, layers, source)
    assert set(store.kept) == {"layers"}
    run(store, split, source)
    assert (split.made, layers.made, source.readings) == (12, 6, 3)


def test_a_product_that_was_interrupted_leaves_nothing_half() -> None:
    store, source, executor = Store[Tensor](800), Source(), Sum("split", 100)
    visit = executor.visit(store, source)
    next(visit)
    visit.close()
    assert run(store, executor, source) == 444.0


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
