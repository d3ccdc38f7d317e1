"""The Nyström factor of one random block."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import NumericalError
from lapwing.linalg import Diagonal, LowRank
from lapwing.linalg.sketching import nystrom
from tests.linalg.cases import normal, spd, spectrum
from tests.linalg.test_lanczos import counted


@pytest.mark.parametrize("condition", [10.0, 1e8])
def test_nystrom_is_below_the_matrix_and_near_it(condition: float, generator: torch.Generator) -> None:
    matrix = spd(70, condition)
    operator, columns = counted(matrix)
    factor = nystrom(operator, 30, generator=generator)
    assert (factor.shape, columns) == ((70, 30), [30])
    rest = torch.linalg.eigvalsh(matrix - factor @ factor.mT)
    assert rest[0] > -1e-13 * 30
    assert rest[-1] < 3 * spectrum(70, condition)[20:].sum()
    gram = factor.mT @ factor
    torch.testing.assert_close(gram, gram.diagonal().diag(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [6, 25, 99])
def test_nystrom_of_a_low_rank_matrix_is_the_matrix(rank: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    root = normal(40, 6)
    factor = nystrom(LowRank(root.to(dtype)), rank, generator=generator)
    assert factor.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(factor.double() @ factor.double().mT, root @ root.mT, rtol=0, atol=2000 * eps)


def test_nystrom_preconditions(generator: torch.Generator) -> None:
    values = 1e4 * torch.exp(-torch.arange(200, dtype=torch.float64) / 2)
    preconditioner = LowRank(nystrom(Diagonal(values), 50, generator=generator)).shifted(1.0)
    ratio = preconditioner.inverse_root().T @ (torch.diag(values + 1) @ preconditioner.inverse_root().dense())
    assert torch.linalg.cond(ratio) < 1.5


def test_a_power_brings_nystrom_nearer(generator: torch.Generator) -> None:
    matrix, state, rests = spd(70, 1e3), generator.get_state(), []
    for power in (0, 1, 2):
        operator, columns = counted(matrix)
        factor = nystrom(operator, 30, power=power, generator=generator.set_state(state))
        assert columns == [30] * (power + 1)
        rests.append(float(torch.linalg.eigvalsh(matrix - factor @ factor.mT)[-1]))
    best = float(spectrum(70, 1e3)[30])
    assert rests[0] > 1.5 * rests[1] and rests[1] > rests[2] >= best > 0.7 * rests[2]


def test_nystrom_of_zero_and_of_indefinite_operators(generator: torch.Generator) -> None:
    assert nystrom(Diagonal(torch.zeros(5)), 3, generator=generator).tolist() == [[0.0]] * 5
    with pytest.raises(NumericalError, match=r"a positive semi-definite operator. Got uᵀAu = -"):
        nystrom(Diagonal(torch.tensor([5.0, -1.0, -2.0])), 3, generator=generator)
