"""What a network is called with: numbers as tensors, pieces of examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lapwing.ground.data.inputs import as_tensor, check_inputs, chunks, concatenated, count, take, tensors
from lapwing.ground.errors import DataError, ShapeError
from tests.checker import unchecked
from tests.frames import Frame
from tests.posterior_cases import labels, normal, refused

X, Y = normal(5, 2), labels(5, classes=3)


class TestNumbers:
    @pytest.mark.parametrize(
        ("array", "dtype"),
        [
            (np.arange(6, dtype=np.uint16)[::-1], torch.int64),
            (np.arange(6, dtype=">f4"), torch.float32),
            (np.arange(6, dtype=np.longdouble), torch.float64),
            (np.arange(6) > 2, torch.bool),
            (np.arange(6, dtype=np.uint8), torch.uint8),
        ],
        ids=str,
    )
    def test_of_every_kind(self, array: Any, dtype: torch.dtype) -> None:
        array.flags.writeable = False
        found = as_tensor(array)
        assert found.dtype == dtype and found.tolist() == array.tolist()

    def test_share_the_memory_of_an_array(self) -> None:
        array = np.zeros(3)
        assert as_tensor(array).data_ptr() == array.ctypes.data
        assert as_tensor(X) is X

    def test_of_columns_of_several_types_are_of_one(self) -> None:
        found = as_tensor(Frame(age=[20, 30], tall=[True, False], height=[1.7, 1.8]))
        assert found.tolist() == [[20.0, 1.0, 1.7], [30.0, 0.0, 1.8]]

    @pytest.mark.parametrize(
        ("values", "says"),
        [
            (
                Frame(age=[20, 30], town=np.array(["Ulm", "Rom"], object)),
                "numbers in column 'town'. Got values",
            ),
            (Frame(day=np.array(["2020-01-01"], "datetime64[D]")), "numbers in column 'day'"),
            ([["a"]], "such as np.str_('a')"),
            ([[1.0], [2.0, 3.0]], "rows of one length"),
            (Frame(), "columns of different names"),
            (np.ma.masked_array([1.0, 1e9, 2.0], [False, True, False]), "numbers in values. Got 1 masked"),
        ],
    )
    def test_are_numbers(self, values: Any, says: str) -> None:
        with unchecked(), refused(DataError, says):
            as_tensor(values)


class TestPieces:
    def test_a_loader_in_place_of_inputs_is_refused_with_what_to_do(self) -> None:
        with unchecked(), refused(DataError, "as the network is called with them, or of a loader batch by batch"):
            count([(X, Y)])  # pyright: ignore

    INPUTS: tuple[Any, ...] = (X, {"x": X, "flag": True, "ids": Y}, (X, "flag", Y))

    @pytest.mark.parametrize("inputs", INPUTS, ids=["tensor", "mapping", "tuple"])
    def test_pieces_put_together_again_are_the_whole(self, inputs: Any) -> None:
        pieces = list(chunks(inputs, 2))
        assert [(place.start, place.stop) for place, _ in pieces] == [(0, 2), (2, 4), (4, 5)]
        assert [count(part) for _, part in pieces] == [2, 2, 1]
        whole = concatenated([part for _, part in pieces])
        assert type(whole) is type(inputs)
        for a, b in zip(tensors(whole), tensors(inputs), strict=True):
            assert torch.equal(a, b)

    def test_values_that_are_no_tensors_stay(self) -> None:
        assert concatenated([(X, "a"), (X, "a")])[1] == "a"
        assert take({"x": X, "flag": True}, slice(1, 2))["flag"] is True

    def test_examples_of_several_shapes_are_refused(self) -> None:
        parts: list[Any] = [{"x": torch.zeros(2, length, 3), "flag": True} for length in (4, 5)]
        with refused(ShapeError, "padding"):
            concatenated(parts)

    def test_pieces_are_as_even_as_can_be(self) -> None:
        assert [count(part) for _, part in chunks(torch.zeros(10, 1), 4)] == [4, 4, 2]
        assert [count(part) for _, part in chunks(torch.zeros(9, 1), 8)] == [5, 4]

    def test_one_piece_is_not_copied(self) -> None:
        ((place, part),) = chunks(X, 5)
        assert part is X and place == slice(0, 5)


class TestRefusals:
    @pytest.mark.parametrize(
        ("inputs", "got"),
        [(torch.tensor(1.0), "shape []"), (("a", "b"), "str, str"), ([[1.0]], "tensors as the network is called")],
    )
    def test_inputs_without_examples(self, inputs: Any, got: str) -> None:
        with unchecked(), refused(DataError, got):
            count(inputs)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_inputs_that_are_not_finite(self, bad: float) -> None:
        spoilt = X.clone()
        spoilt[2, 1] = bad
        with refused(DataError, "finite inputs"):
            check_inputs((X, spoilt))

    def test_finite_numbers_pass(self) -> None:
        check_inputs({"x": X, "ids": Y})
