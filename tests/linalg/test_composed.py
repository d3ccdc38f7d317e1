"""Independent blocks, and sums and the structures they reduce to."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import ShapeError, UnsupportedError
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, FunctionOperator, Kronecker, LowRank, Structured, Sum
from tests.linalg.cases import eye, normal, spd, spectrum

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
    added = interleaved().plus_diagonal(Diagonal(values))
    torch.testing.assert_close(added.dense(), interleaved().dense() + values.diag())


def test_a_diagonal_that_is_constant_on_each_block_suits_kronecker_blocks() -> None:
    blocks = (Kronecker(spd(1, 10.0), spd(3, 10.0)), Kronecker(spd(2, 10.0), spd(1, 10.0)))
    operator = BlockDiagonal(blocks, INDEX)
    values = torch.empty(5, dtype=torch.float64)
    values[INDEX[0]], values[INDEX[1]] = 0.1, 0.7
    torch.testing.assert_close(operator.plus_diagonal(Diagonal(values)).dense(), operator.dense() + values.diag())
    with pytest.raises(UnsupportedError, match="Isotropic or Layerwise"):
        operator.plus_diagonal(Diagonal(torch.arange(5.0, dtype=torch.float64)))


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


DIAGONAL = Diagonal(spectrum(6, 10.0))
DENSE = Dense(spd(6, 10.0))
LOW_RANK = LowRank(normal(6, 2))
KRONECKER = Kronecker(spd(2, 10.0), spd(3, 10.0))


@pytest.mark.parametrize(
    ("terms", "structure"),
    [
        ((KRONECKER,), Kronecker),
        ((DIAGONAL, DIAGONAL), Diagonal),
        ((DIAGONAL, LOW_RANK, DIAGONAL), LowRank),
        ((LOW_RANK, LOW_RANK.shifted(1.0)), LowRank),
        ((LOW_RANK.shifted(1.0), LOW_RANK), LowRank),
        ((Diagonal(torch.ones(6).double()), KRONECKER), Kronecker),
        ((DIAGONAL, KRONECKER, LOW_RANK, DENSE), Dense),
        ((KRONECKER, Sum((DENSE, DIAGONAL))), Dense),
    ],
)
def test_what_a_sum_reduces_to(terms: tuple[Structured, ...], structure: type[Structured]) -> None:
    total = Sum(terms)
    reduced = total.reduce()
    assert isinstance(reduced, structure)
    assert reduced is total.reduce()
    torch.testing.assert_close(reduced.dense(), total.dense())
    torch.testing.assert_close(total.dense(), torch.stack([term.dense() for term in terms]).sum(0))


def test_what_does_not_reduce_still_multiplies() -> None:
    total, v = Sum((KRONECKER, LOW_RANK)), normal(6)
    torch.testing.assert_close(total @ v, KRONECKER @ v + LOW_RANK @ v)
    torch.testing.assert_close(total.diagonal(), KRONECKER.diagonal() + LOW_RANK.diagonal())
    torch.testing.assert_close(total.trace(), KRONECKER.trace() + LOW_RANK.trace())
    for question in (total.reduce, total.logdet, total.root, lambda: total.solve(v)):
        with pytest.raises(UnsupportedError, match=r"Got Kronecker \+ LowRank. Try terms that reduce to one structure"):
            question()


def test_kronecker_and_a_varying_diagonal_names_what_holds_it() -> None:
    with pytest.raises(UnsupportedError, match="Diagonal"):
        Sum((KRONECKER, DIAGONAL)).logdet()


def test_a_term_known_only_by_its_products() -> None:
    matrix, v = spd(6, 10.0), normal(6, 2)
    product = FunctionOperator(lambda x: matrix @ x, lambda x: matrix @ x, size=(6, 6), like=matrix)
    total = Sum((product, DIAGONAL)).shifted(0.5)
    torch.testing.assert_close(total @ v, matrix @ v + DIAGONAL @ v + 0.5 * v)
    for question in (total.diagonal, total.trace, total.logdet, lambda: total.scaled(2.0)):
        with pytest.raises(UnsupportedError, match=r"Got FunctionOperator \+ Diagonal \+ Diagonal. Try terms"):
            question()


def test_scaled_and_shifted_sums_stay_sums() -> None:
    total = Sum((LOW_RANK, DIAGONAL)).scaled(2.0).shifted(0.5)
    assert isinstance(total, Sum)
    torch.testing.assert_close(total.dense(), 2 * (LOW_RANK.dense() + DIAGONAL.dense()) + 0.5 * eye(6))


def test_terms_that_do_not_belong_together() -> None:
    with pytest.raises(ShapeError, match="one or more terms"):
        Sum(())
    with pytest.raises(ShapeError, match=r"one shape.*Diagonal\(3 x 3.*Diagonal\(6 x 6"):
        Sum((Diagonal(torch.ones(3).double()), DIAGONAL))
