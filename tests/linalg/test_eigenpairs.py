"""Top eigenpairs by block Lanczos and by a random range."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError
from lapwing.linalg import (
    Dense,
    Diagonal,
    Eigenpairs,
    FunctionOperator,
    LowRank,
    nystrom,
    randomised_eigenpairs,
    top_eigenpairs,
)
from tests.linalg.cases import eye, normal, spd, spectrum
from tests.linalg.test_lanczos import counted


def check(found: Eigenpairs, matrix: Tensor, rank: int, tolerance: float) -> None:
    """As many as asked for, the largest, descending, orthonormal, with the residuals they claim."""
    largest = torch.linalg.eigvalsh(matrix).flip(0)[:rank]
    scale = largest[0].item()
    vectors = found.vectors.double()
    torch.testing.assert_close(found.values, largest, rtol=0, atol=tolerance * scale)
    torch.testing.assert_close(vectors.mT @ vectors, eye(rank), rtol=0, atol=max(1e-12, tolerance))
    residual = torch.linalg.vector_norm(matrix @ vectors - vectors * found.values, dim=0)
    torch.testing.assert_close(found.residual, residual, rtol=1e-3, atol=max(1e-13, tolerance) * scale)


@pytest.mark.parametrize("block", [1, 3, 16])
@pytest.mark.parametrize("rank", [1, 7, 40])
@pytest.mark.parametrize("condition", [10.0, 1e6])
def test_the_largest_by_block_lanczos(rank: int, block: int, condition: float, generator: torch.Generator) -> None:
    matrix = spd(100, condition)
    operator, columns = counted(matrix)
    found = top_eigenpairs(operator, rank, rtol=1e-9, block=block, generator=generator)
    assert found.stopped == "converged"
    assert found.matvecs == sum(columns)
    assert (found.residual <= 1e-9 * found.values[0]).all()
    check(found, matrix, rank, 1e-9)


def test_restarts_keep_what_was_found(generator: torch.Generator) -> None:
    values = torch.linspace(1.0, 2.0, 2000, dtype=torch.float64)
    found = top_eigenpairs(Diagonal(values), 3, rtol=1e-5, block=4, generator=generator)  # its basis holds 38 columns
    assert found.stopped == "converged"
    assert found.matvecs > 2 * 38
    torch.testing.assert_close(found.values, values.flip(0)[:3], rtol=1e-5, atol=0)
    torch.testing.assert_close(found.vectors.mT @ found.vectors, eye(3), rtol=0, atol=1e-13)


def test_it_says_when_it_ran_out_of_steps(generator: torch.Generator) -> None:
    values = torch.linspace(1.0, 2.0, 300, dtype=torch.float64)
    found = top_eigenpairs(Diagonal(values), 5, max_steps=3, generator=generator)
    assert (found.stopped, found.matvecs) == ("iterations", 48)
    actual = torch.linalg.vector_norm(values[:, None] * found.vectors - found.vectors * found.values, dim=0)
    torch.testing.assert_close(found.residual, actual, rtol=1e-8, atol=0)
    assert (found.residual > 1e-4).any()


@pytest.mark.parametrize("find", [top_eigenpairs, randomised_eigenpairs])
@pytest.mark.parametrize("true_rank", [1, 5, 20])
def test_fewer_pairs_where_there_are_no_more(find, true_rank: int, generator: torch.Generator) -> None:
    factor = normal(60, true_rank)
    found = find(LowRank(factor), 30, generator=generator)
    assert found.values.shape == (true_rank,)
    check(found, factor @ factor.mT, true_rank, 1e-12)


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("find", [top_eigenpairs, randomised_eigenpairs])
def test_all_of_a_small_matrix(find, d: int, generator: torch.Generator) -> None:
    matrix = spd(d, 100.0)
    check(find(Dense(matrix), 50, generator=generator), matrix, d, 1e-13)


def test_repeated_eigenvalues_beyond_the_krylov_space(generator: torch.Generator) -> None:
    values = torch.cat([torch.tensor([9.0, 7.0, 5.0]), torch.full((57,), 2.0)]).double()
    found = top_eigenpairs(Diagonal(values), 45, block=4, generator=generator)
    torch.testing.assert_close(found.values, values[:45])
    torch.testing.assert_close(found.vectors.mT @ found.vectors, eye(45), rtol=0, atol=1e-13)


@pytest.mark.parametrize("find", [top_eigenpairs, randomised_eigenpairs])
def test_zero_negative_and_indefinite_operators(find, generator: torch.Generator) -> None:
    zero = find(Diagonal(torch.zeros(6)), 3, generator=generator)
    assert zero.values.tolist() == [0.0]
    assert zero.vectors.shape == (6, 1)
    found = find(Dense(torch.diag(torch.tensor([3.0, -9.0, 2.0, -1.0]).double())), 4, generator=generator)
    torch.testing.assert_close(found.values, torch.tensor([3.0, 2.0]).double())
    with pytest.raises(NumericalError, match=r"a positive eigenvalue. Got a largest one of -1"):
        find(Diagonal(-torch.arange(1.0, 6.0)), 2, generator=generator)


@pytest.mark.parametrize("find", [top_eigenpairs, randomised_eigenpairs])
def test_float32_products(find, generator: torch.Generator) -> None:
    matrix = spd(80, 1e5)
    found = find(Dense(matrix.float()), 6, generator=generator)
    assert found.vectors.dtype == torch.float32
    assert found.values.dtype == torch.float64
    torch.testing.assert_close(
        found.values, spectrum(80, 1e5)[:6], rtol=2e-3 if find is randomised_eigenpairs else 1e-6, atol=0
    )


def test_a_random_range_is_nearly_optimal_and_sharpens_with_each_power(generator: torch.Generator) -> None:
    matrix = spd(150, 1e6)
    best = spectrum(150, 1e6)
    errors = []
    for power in (0, 1, 3):
        operator, columns = counted(matrix)
        found = randomised_eigenpairs(operator, 20, power=power, generator=generator)
        assert (found.matvecs, sum(columns)) == (30 * (power + 2), 30 * (power + 2))
        assert (found.values <= best[:20] * (1 + 1e-12)).all()
        vectors = found.vectors
        residual = torch.linalg.vector_norm(matrix @ vectors - vectors * found.values, dim=0)
        torch.testing.assert_close(found.residual, residual, rtol=1e-6, atol=1e-13)
        errors.append((best[:20] - found.values).abs().max().item())
    assert errors[0] < 0.5 * best[20]
    assert errors[1] < 0.2 * errors[0]
    assert errors[2] < 0.2 * errors[1]


def test_bad_input() -> None:
    operator = Dense(spd(4, 10.0))
    wide = FunctionOperator(lambda v: v[:2], lambda u: u, (2, 4), normal(4))
    for find in (top_eigenpairs, randomised_eigenpairs, nystrom):
        with pytest.raises(ConfigError, match="rank of at least 1"):
            find(operator, 0)
        with pytest.raises(ShapeError, match="a symmetric operator"):
            find(wide, 2)
        with pytest.raises(NumericalError, match="finite numbers"):
            find(Diagonal(torch.tensor([1.0, float("nan")])), 2)
    with pytest.raises(ConfigError, match="a positive rtol"):
        top_eigenpairs(operator, 2, rtol=-1.0)
    with pytest.raises(ConfigError, match="block of at least 1"):
        top_eigenpairs(operator, 2, block=0)
    with pytest.raises(ConfigError, match="max_steps of at least 1"):
        top_eigenpairs(operator, 2, max_steps=0)
    with pytest.raises(ConfigError, match="power of at least 0"):
        randomised_eigenpairs(operator, 2, power=-1)
