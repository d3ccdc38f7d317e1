"""Pivoted Cholesky: pivots, blocks of them, and what stops it; Nyström factors."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError
from lapwing.linalg import Dense, Diagonal, FunctionOperator, LowRank
from lapwing.linalg.pivoted import pivoted_cholesky
from tests.linalg.cases import normal, spd
from tests.linalg.test_lanczos import counted


def kernel(d: int = 60, width: float = 0.2) -> Tensor:
    """A scaled squared-exponential kernel: its spectrum decays fast and its neighbouring columns are alike."""
    x = torch.linspace(0, 1, d, dtype=torch.float64).square()
    scale = 1 + x / 3
    return scale[:, None] * torch.exp(-(x[:, None] - x).square() / (2 * width**2)) * scale


def pivots_of(matrix: Tensor, factor: Tensor) -> list[int]:
    """Where the residual diagonal is zero."""
    rest = (matrix - factor @ factor.mT).diagonal()
    return (rest < 1e-10 * matrix.diagonal().max()).nonzero()[:, 0].tolist()


def textbook(matrix: Tensor, rank: int) -> Tensor:
    """Greedy pivots, one by one, on the whole residual matrix."""
    residual, columns = matrix.clone(), []
    for _ in range(rank):
        pivot = int(residual.diagonal().argmax())
        columns.append(residual[:, pivot] / residual[pivot, pivot].sqrt())
        residual = residual - torch.outer(columns[-1], columns[-1])
    return torch.stack(columns, 1)


@pytest.mark.parametrize("matrix", [kernel(), spd(40, 1e4)])
def test_one_by_one_it_is_the_textbook_s(matrix: Tensor) -> None:
    factor, _ = pivoted_cholesky(Dense(matrix), matrix.diagonal(), 9, block=1)
    torch.testing.assert_close(factor, textbook(matrix, 9), rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("block", [1, 4, 32])
def test_it_is_exact_on_its_pivots_and_below_the_matrix(random: bool, block: int, generator: torch.Generator) -> None:
    matrix = spd(50, 1e3)
    factor, _ = pivoted_cholesky(Dense(matrix), matrix.diagonal(), 12, random=random, block=block, generator=generator)
    rest = matrix - factor @ factor.mT
    pivots = pivots_of(matrix, factor)
    assert factor.shape == (50, 12)
    assert len(pivots) == 12
    torch.testing.assert_close(rest[:, pivots], torch.zeros(50, 12).double(), rtol=0, atol=1e-13)
    assert torch.linalg.eigvalsh(rest)[0] > -1e-13
    torch.testing.assert_close(rest, matrix - textbook_on(matrix, pivots), rtol=0, atol=1e-12)


def textbook_on(matrix: Tensor, pivots: list[int]) -> Tensor:
    """The one matrix of that rank, below it, that is exact on those columns."""
    return matrix[:, pivots] @ torch.linalg.solve(matrix[pivots][:, pivots], matrix[pivots])


@pytest.mark.parametrize("random", [False, True])
def test_blocks_lose_little(random: bool, generator: torch.Generator) -> None:
    matrix = kernel(200)
    rest = {}
    for block in (1, 8):
        operator, columns = counted(matrix)
        factor, _ = pivoted_cholesky(
            operator, matrix.diagonal(), 8, random=random, block=block, rtol=1e-9, generator=generator
        )
        rest[block] = (matrix - factor @ factor.mT).diagonal().sum().item()
        assert factor.shape[1] == 8
        assert len(columns) <= 8
    best = torch.linalg.eigvalsh(matrix)[:-8].sum().item()
    assert rest[1] < 60 * best
    assert rest[8] < 60 * best


def test_random_blocks_draw_as_if_one_by_one() -> None:
    matrix = spd(4, 30.0, seed=2)
    diagonal = matrix.diagonal()
    expected: Counter[tuple[int, ...]] = Counter()
    for first, second in permutations(range(4), 2):
        rest = diagonal - matrix[:, first].square() / matrix[first, first]
        chance = diagonal[first] / diagonal.sum() * rest[second] / rest.sum()
        expected[tuple(sorted((first, second)))] += chance.item()
    seen: Counter[tuple[int, ...]] = Counter()
    draws = 1500
    for seed in range(draws):
        generator = torch.Generator().manual_seed(seed)
        factor, _ = pivoted_cholesky(Dense(matrix), diagonal, 2, random=True, block=2, generator=generator)
        seen[tuple(pivots_of(matrix, factor))] += 1
    for pair, chance in expected.items():
        assert abs(seen[pair] / draws - chance) < 4 * (chance * (1 - chance) / draws) ** 0.5


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_low_rank_matrix_with_duplicate_rows_is_exhausted(
    random: bool, dtype: torch.dtype, generator: torch.Generator
) -> None:
    root = normal(7, 5).repeat_interleave(6, 0)  # each column of the matrix six times
    matrix = root @ root.mT
    operator = LowRank(root.to(dtype))
    factor, _ = pivoted_cholesky(operator, operator.diagonal(), 30, random=random, block=10, generator=generator)
    assert factor.dtype == dtype
    assert factor.shape == (42, 5)
    tolerance = 1e3 * torch.finfo(dtype).eps
    torch.testing.assert_close(factor.double() @ factor.double().mT, matrix, rtol=tolerance, atol=tolerance)


def test_it_stops_at_its_tolerance_and_at_the_size() -> None:
    matrix = kernel(120)
    for rtol in (1e-1, 1e-4):
        factor, _ = pivoted_cholesky(Dense(matrix), matrix.diagonal(), 60, block=2, rtol=rtol)
        rest = (matrix - factor @ factor.mT).diagonal().sum() / matrix.trace()
        assert rest <= rtol
        assert factor.shape[1] < 20
    small = spd(3, 10.0)
    whole, _ = pivoted_cholesky(Dense(small), small.diagonal(), 9)
    torch.testing.assert_close(whole @ whole.mT, small)
    one, _ = pivoted_cholesky(Diagonal(torch.tensor([4.0])), torch.tensor([4.0]), 3)
    assert one.tolist() == [[2.0]]


def test_a_wrong_diagonal_costs_quality_only() -> None:
    matrix = torch.block_diag(spd(20, 100.0), torch.zeros(5, 5))
    promised = torch.cat([matrix.diagonal()[:20] * torch.linspace(0.5, 2, 20), torch.full((5,), 100.0)]).double()
    factor, _ = pivoted_cholesky(Dense(matrix), promised, 20, block=4)
    assert torch.linalg.eigvalsh(matrix - factor @ factor.mT)[0] > -1e-12
    assert (matrix - factor @ factor.mT).trace() < 0.5 * matrix.trace()


def test_the_zero_matrix_has_a_zero_factor() -> None:
    factor, pivots = pivoted_cholesky(Diagonal(torch.zeros(3)), torch.zeros(3), 2)
    assert (factor.tolist(), pivots.tolist()) == ([[0.0]] * 3, [])


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize("block", [1, 7])
def test_pivots_are_the_columns_the_factor_is_exact_on(random: bool, block: int) -> None:
    matrix, options = kernel(), {"random": random, "block": block}
    factor, pivots = pivoted_cholesky(
        Dense(matrix), matrix.diagonal(), 9, generator=torch.Generator().manual_seed(3), **options
    )
    assert len(set(pivots.tolist())) == 9
    left = (matrix - factor @ factor.mT).diagonal()
    assert float(left[pivots].abs().max()) < 1e-12 < float(left.max())


def test_bad_input() -> None:
    operator, diagonal = Diagonal(torch.arange(1.0, 5.0)), torch.arange(1.0, 5.0)
    wide = FunctionOperator(lambda v: v[:2], lambda u: u, (2, 4), diagonal)
    with pytest.raises(ShapeError, match=r"the diagonal of the operator, \[4\]"):
        pivoted_cholesky(operator, diagonal[:3], 2)
    with pytest.raises(ShapeError, match="a symmetric operator"):
        pivoted_cholesky(wide, diagonal, 2)
    with pytest.raises(NumericalError, match=r"without negative entries\. Got an entry of -4"):
        pivoted_cholesky(operator, -diagonal, 2)
    with pytest.raises(NumericalError, match="finite numbers"):
        pivoted_cholesky(operator, diagonal * float("nan"), 2)
    with pytest.raises(ConfigError, match="rank of at least 1"):
        pivoted_cholesky(operator, diagonal, 0)
    with pytest.raises(ConfigError, match="block of at least 1"):
        pivoted_cholesky(operator, diagonal, 1, block=0)
    with pytest.raises(ConfigError, match="a positive rtol"):
        pivoted_cholesky(operator, diagonal, 1, rtol=0.0)
