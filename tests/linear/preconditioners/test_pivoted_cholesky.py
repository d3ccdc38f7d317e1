"""Pivoted Cholesky factors against the dense precision."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import ConfigError
from lapwing.linalg import LowRank
from lapwing.linear.preconditioners import Pivots
from tests.linear.preconditioners.cases import setting
from tests.posterior_cases import refused


@pytest.mark.parametrize("pivots", ["greedy", "random"])
@pytest.mark.parametrize("name", ["images", "tokens"])
@pytest.mark.no_cover
def test_a_full_cholesky_factor_is_the_precision_itself(name: str, pivots: Pivots) -> None:
    products, dense = setting(name)
    found = lw.preconditioners.PivotedCholesky(products.size, pivots=pivots, block=3).approximate(products).dense()
    left = dense.ggn + 0.7 * torch.eye(products.size).double() - found
    assert float(left.diagonal().abs().sum()) < 1e-5 * float(dense.ggn.trace())


def test_a_partial_cholesky_factor_stays_below_the_precision() -> None:
    products, dense = setting()
    found = lw.preconditioners.PivotedCholesky(4).approximate(products)
    assert isinstance(found, LowRank) and found.factor.shape == (products.size, 4)
    below = found.dense() - 0.7 * torch.eye(products.size).double()
    assert torch.linalg.eigvalsh(dense.ggn - below).min() > -1e-9
    assert below.trace() > 0.5 * dense.ggn.trace()


def test_a_rank_of_nothing_is_refused() -> None:
    with refused(ConfigError, "rank of at least 1"):
        lw.preconditioners.PivotedCholesky(0)
