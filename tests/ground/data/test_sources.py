"""Loaders in, batches out."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lapwing.ground.data.inputs import checked
from lapwing.ground.data.sources import PAIR_BATCH, Data
from lapwing.ground.errors import ConfigError, DataError, ShapeError, describe
from lapwing.ground.progress import working
from tests.checker import unchecked
from tests.frames import Frame
from tests.posterior_cases import labels, normal, refused

X, Y = normal(5, 2), labels(5, classes=3)


def sizes(source: Any, **options: Any) -> list[int]:
    return [len(batch) for batch in Data(source, **options)]


def together(source: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """All inputs and all targets of a source whose inputs are tensors."""
    batches = list(Data(source, **options))
    return torch.cat([batch.inputs for batch in batches]), torch.cat([batch.targets for batch in batches])


class Unsized:
    """Two batches, of which nobody knows before."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield X[:2], Y[:2]
        yield X[2:], Y[2:]


class TestFormats:
    @pytest.mark.parametrize(
        "source",
        [
            (X, Y),
            [(X[:2], Y[:2]), (X[2:], Y[2:])],
            [[X[:2], Y[:2]], [X[2:], Y[2:]]],
            DataLoader(TensorDataset(X, Y), batch_size=2),
            [(X, Y), (X[:0], Y[:0])],
        ],
        ids=["pair", "tuples", "lists", "loader", "empty batch"],
    )
    def test_pairs(self, source: Any) -> None:
        x, y = together(source)
        assert torch.equal(x, X) and torch.equal(y, Y)
        assert 0 not in sizes(source)

    def test_a_pair_is_read_in_batches(self) -> None:
        x = torch.arange(PAIR_BATCH + 1.0)[:, None]
        assert sizes((x, x)) == [PAIR_BATCH, 1]
        assert [int(batch.inputs["ids"].sum()) for batch in Data(({"ids": x, "mask": None}, x))] == [
            PAIR_BATCH * (PAIR_BATCH - 1) // 2,
            PAIR_BATCH,
        ]

    @pytest.mark.parametrize("key", ["labels", "label"])
    @pytest.mark.parametrize("kind", [dict, UserDict])
    def test_mappings(self, kind: Any, key: str) -> None:
        (batch,) = Data([kind({"input_ids": X, "mask": None, key: Y})], like=X)
        assert list(batch.inputs) == ["input_ids", "mask"]
        assert torch.equal(batch.inputs["input_ids"], X) and batch.inputs["mask"] is None
        assert torch.equal(batch.targets, Y) and len(batch) == 5

    @pytest.mark.parametrize("element", [(X, 2 * X, Y), ((X, 2 * X), Y), [[X, 2 * X], Y]])
    def test_several_inputs(self, element: Any) -> None:
        (batch,) = Data([element], like=X)
        assert isinstance(batch.inputs, tuple)
        assert [torch.equal(a, b) for a, b in zip(batch.inputs, (X, 2 * X), strict=True)] == [True, True]

    @pytest.mark.parametrize("second", [2 * X, (2 * X).numpy()], ids=["tensor", "array"])
    def test_several_inputs_in_a_pair(self, second: Any) -> None:
        (batch,) = Data(((X, second), Y), like=X)
        assert isinstance(batch.inputs, tuple)
        assert [torch.equal(a, b) for a, b in zip(batch.inputs, (X, 2 * X), strict=True)] == [True, True]
        assert torch.equal(batch.targets, Y)

    def test_collated_pairs_of_inputs(self) -> None:
        class Twice(Dataset):
            def __len__(self) -> int:
                return 5

            def __getitem__(self, index: int) -> Any:
                return (X[index], -X[index]), Y[index]

        batches = list(Data(DataLoader(Twice(), batch_size=3)))
        assert torch.equal(torch.cat([batch.inputs[1] for batch in batches]), -X)

    def test_unpack(self) -> None:
        x, y = together([{"data": {"x": X}, "answer": Y}], unpack=lambda it: (it["data"]["x"], it["answer"]))
        assert torch.equal(x, X) and torch.equal(y, Y)

    def test_an_iterator_can_be_read_again(self) -> None:
        source = Data(iter([(X[:2], Y[:2]), (X[2:], Y[2:])]))
        assert [len(batch) for batch in source] == [2, 3]
        assert [len(batch) for batch in source] == [2, 3]


class TestNumbers:
    """Arrays, data frames and lists in place of tensors."""

    FRAME = Frame(a=X[:, 0].numpy(), b=X[:, 1].numpy())
    NUMBERS: tuple[Any, ...] = (X.numpy(), FRAME, X.tolist())

    @pytest.mark.parametrize("x", NUMBERS, ids=["array", "frame", "list"])
    @pytest.mark.parametrize("y", [Y.numpy(), Y.tolist(), tuple(Y.tolist()), Y], ids=["array", "list", "tuple", "same"])
    def test_are_read_as_tensors(self, x: Any, y: Any) -> None:
        for source in ((x, y), [(x, y)]):
            inputs, targets = together(source)
            assert torch.equal(inputs, X) and torch.equal(targets, Y)
        (batch,) = Data((x, y), like=torch.zeros(1))
        assert (batch.inputs.dtype, batch.targets.dtype) == (torch.float32, torch.int64)
        assert torch.equal(checked(x, X), X)

    def test_stand_among_inputs(self) -> None:
        (batch,) = Data([{"ids": Y.numpy(), "size": [4, 4], "flag": None, "labels": Y.tolist()}], like=X)
        assert torch.equal(batch.inputs["ids"], Y) and torch.equal(batch.targets, Y)
        assert batch.inputs["size"] == [4, 4] and batch.inputs["flag"] is None
        (several,) = Data([(X.numpy(), X, Y.numpy())], like=X)
        assert torch.equal(several.inputs[0], X) and isinstance(several.inputs, tuple)
        inputs, targets = together([None], unpack=lambda _: (X.numpy(), Y.tolist()))
        assert torch.equal(inputs, X) and torch.equal(targets, Y)


class TestBatches:
    def test_take_the_device_and_dtype_of_the_network(self, device: torch.device) -> None:
        ids, flag = torch.arange(5), "flag"
        like = torch.zeros(1, dtype=torch.float32, device=device)
        (batch,) = Data([((X, ids, flag), X)], like=like)
        x, moved, kept = batch.inputs
        assert (x.dtype, moved.dtype, kept) == (torch.float32, torch.int64, "flag")
        assert {x.device.type, moved.device.type, batch.targets.device.type} == {device.type}
        assert batch.targets.dtype == torch.float64

    def test_stay_as_they_are_without_a_network(self) -> None:
        (batch,) = Data((X, Y))
        assert batch.inputs.dtype == torch.float64

    @pytest.mark.parametrize("progress", [False, True])
    def test_show_progress_on_request(self, progress: bool, capsys: pytest.CaptureFixture[str]) -> None:
        with working("read", progress):
            sizes((X, Y))
        assert ("batches" in capsys.readouterr().err) == progress

    @pytest.mark.parametrize(
        "source",
        [
            (X, Y),
            (X.numpy(), Y.tolist()),
            (X.tolist(), Y),
            ((X, 2 * X), Y),
            [(X, Y)],
            DataLoader(TensorDataset(X, Y), batch_size=1),
            iter([(X, Y)]),
            Unsized(),
        ],
    )
    def test_say_about_how_many_examples_there_are(self, source: Any) -> None:
        data = Data(source)
        assert data.about(len(next(iter(data)))) == len(X)


class TestRefusals:
    @pytest.mark.parametrize(
        ("source", "got"),
        [
            ([], "an empty list"),
            ((X[:0], Y[:0]), "an empty tuple"),
            (DataLoader(TensorDataset(X, Y), batch_size=9, drop_last=True), "an empty DataLoader"),
            (iter(()), "an iterator that is already exhausted"),
        ],
    )
    def test_nothing(self, source: Any, got: str) -> None:
        with refused(DataError, got):
            list(Data(source))

    @pytest.mark.parametrize(
        ("element", "got"),
        [
            (X, "a tensor of shape [5, 2]"),
            ((X,), "a tuple of 1: Tensor"),
            ([X.numpy(), "abc"], "a list of 2: ndarray, str"),
            ([X.tolist(), Y.tolist()], "a list of 2: list, list"),
            ({"input_ids": X}, "a mapping with keys ['input_ids']"),
            ("text", "a str"),
        ],
    )
    def test_elements_it_cannot_split(self, element: Any, got: str) -> None:
        with refused(DataError, got):
            list(Data([element]))

    @pytest.mark.parametrize("source", [(X, Y[:3]), [(X, Y[:3])], (X, torch.tensor(1))])
    def test_another_number_of_targets(self, source: Any) -> None:
        with refused(ShapeError, "as many targets as inputs"):
            list(Data(source))

    def test_a_long_pair_is_not_cut_to_the_shorter_part(self) -> None:
        x = torch.zeros(2 * PAIR_BATCH, 1)
        with refused(ShapeError, f"[{PAIR_BATCH}, 1]"):
            list(Data((x, x[:PAIR_BATCH])))

    def test_single_examples(self) -> None:
        with refused(ShapeError, "as many targets"):
            list(Data([(X[0], Y[0])]))

    @pytest.mark.parametrize("source", [None, 3, X, {"x": X, "labels": Y}, X.numpy(), Frame(a=[1.0], b=[2.0])])
    def test_what_is_no_data(self, source: Any) -> None:
        got = "a loader, a list of batches, or tensors (x, y). Got " + describe(source)
        with unchecked(), refused(DataError, got):
            Data(source)

    def test_rows_that_unpack_knows(self) -> None:
        batches = Data(X[None], unpack=lambda x: (x, x[:, 0]))
        assert [batch.targets.tolist() for batch in batches] == [X[:, 0].tolist()]

    def test_an_unpack_that_is_no_function(self) -> None:
        unpack: Any = "x"
        with unchecked(), refused(ConfigError, "unpack= to be a function"):
            Data([(X, Y)], unpack=unpack)

    @pytest.mark.parametrize(
        ("unpack", "got"),
        [
            (lambda _: (X, Y, Y), "a tuple of 3"),
            (lambda _: X, "a tensor of shape [5, 2]"),
            (lambda _: (X, ["a"]), "Tensor, list"),
        ],
    )
    def test_an_unpack_that_returns_something_else(self, unpack: Any, got: str) -> None:
        with unchecked(), refused(DataError, got):
            list(Data([(X, Y)], unpack=unpack))


def test_first_inputs_are_checked() -> None:
    with refused(DataError, "finite inputs"):
        Data([(X.new_full((1, 3), torch.nan), Y[:1]), (X, Y)], like=X).first()
