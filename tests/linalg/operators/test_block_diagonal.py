"""Independent blocks."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import ShapeError, UnsupportedError
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, Kronecker, LowRank
from tests.linalg.cases import normal, spd

INDEX = (torch.tensor([4, 0, 2]), torch.tensor([3, 1]))


def interleaved() -> BlockDiagonal:
    return BlockDiagonal((Dense(spd(3, 10.0)), Diagonal(torch.tensor([5.0, 6.0]).double())), INDEX)


def test_a_block_acts_on_its_own_coordinates_in_its_own_order() -> None:
    v, out = normal(5), torch.empty(5, dtype=torch.float64)
    out[[4, 0, 2]] = spd(3, 10.0) @ v[[4, 0, 2]]
    out[3], out[1] = 5 * v[3], 6 * v[1]
    torch.testing.assert_close(interleaved() @ v, out)


def test_roots_need_not_be_square() -> None:
    operator = BlockDiagonal((LowRank(normal(3, 1)), Diagonal(torch.ones(2).double())), INDEX)
    root = operator.root()
    assert root.shape == (5, 3)
    torch.testing.assert_close(root @ root.T.dense(), operator.dense())


def test_each_block_takes_its_own_part_of_a_diagonal() -> None:
    values = torch.arange(1.0, 6.0, dtype=torch.float64)
    added = interleaved().plus_diagonal(values)
    torch.testing.assert_close(added.dense(), interleaved().dense() + values.diag())


def test_a_diagonal_that_is_constant_on_each_block_suits_kronecker_blocks() -> None:
    blocks = (Kronecker(spd(1, 10.0), spd(3, 10.0)), Kronecker(spd(2, 10.0), spd(1, 10.0)))
    operator = BlockDiagonal(blocks, INDEX)
    values = torch.empty(5, dtype=torch.float64)
    values[INDEX[0]], values[INDEX[1]] = 0.1, 0.7
    torch.testing.assert_close(operator.plus_diagonal(values).dense(), operator.dense() + values.diag())
    with pytest.raises(UnsupportedError, match="Isotropic or Layerwise"):
        operator.plus_diagonal(torch.arange(5.0, dtype=torch.float64))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ((torch.tensor([0, 1, 2]),), r"lengths \[3, 2\]. Got \[3\]"),
        ((torch.tensor([0, 1]), torch.tensor([2, 3, 4])), r"lengths \[3, 2\]. Got \[2, 3\]"),
        ((torch.tensor([0, 1, 2]), torch.tensor([2, 3])), r"each of 0 ... 4 once"),
        ((torch.tensor([0, 1, 2]), torch.tensor([4, 5])), r"each of 0 ... 4 once"),
        ((torch.tensor([0, 1, -2]), torch.tensor([2, 3])), r"each of 0 ... 4 once"),
    ],
)
def test_an_index_that_is_no_partition(index: tuple[torch.Tensor, ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        BlockDiagonal((Diagonal(torch.ones(3)), Diagonal(torch.ones(2))), index)


def test_blocks_that_do_not_belong_together() -> None:
    with pytest.raises(ShapeError, match=r"one or more blocks.* Got \[\]"):
        BlockDiagonal(())
    with pytest.raises(ShapeError, match="of one dtype"):
        BlockDiagonal((Diagonal(torch.ones(3)), Diagonal(torch.ones(2).double())))
