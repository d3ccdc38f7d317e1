"""Outputs in one basis for all positions have the moments of their written covariances."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.predictive import WideMoments


def made(generator: torch.Generator, mixed: int = 3) -> tuple[WideMoments, Tensor]:
    """Five outputs at two positions, of which a rotation mixes some, and their covariances from their definition."""
    mean, values = torch.randn(2, 5, generator=generator).double(), torch.rand(2, 5, generator=generator).double()
    rows = torch.tensor([4, 1, 2, 0, 3])[:mixed]
    vectors = torch.linalg.qr(torch.randn(mixed, mixed, generator=generator).double())[0]
    if mixed == 5:
        rows = torch.arange(5)
    basis = torch.eye(5, dtype=torch.float64)
    basis[rows[:, None], rows] = vectors
    return WideMoments(mean, values, rows, vectors), basis @ values.diag_embed() @ basis.mT


@pytest.mark.parametrize("mixed", [3, 5])
def test_columns_of_the_basis_are_what_variances_belong_to(mixed: int, generator: torch.Generator) -> None:
    moments, covariance = made(generator, mixed)
    torch.testing.assert_close(moments.covariance, covariance)
    torch.testing.assert_close(moments.variance, covariance.diagonal(dim1=-2, dim2=-1))
    draws = moments.sample(40_000, generator=generator) - moments.mean
    sampled = torch.einsum("kni,knj->nij", draws, draws) / len(draws)
    torch.testing.assert_close(sampled, covariance, rtol=0, atol=0.03)


def test_outputs_that_are_scaled_have_the_square_of_it_in_their_covariance(generator: torch.Generator) -> None:
    moments, covariance = made(generator)
    scaled = moments.scaled(-3.0)
    torch.testing.assert_close(scaled.mean, -3.0 * moments.mean)
    torch.testing.assert_close(scaled.covariance, 9.0 * covariance)
