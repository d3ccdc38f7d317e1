"""Moments of outputs too many for a covariance a position: they answer as the covariance written down does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import TooLargeError, UnsupportedError
from lapwing.predictive import (
    BasisMoments,
    Counts,
    FactorMoments,
    Moments,
    VarianceMoments,
    WideMoments,
    laplace_bridge,
    monte_carlo,
    pairwise,
    probit,
    quasi_monte_carlo,
)
from tests.meter import Meter

N, T, C = 3, 2, 7


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cases(scale: float = 1.0, c: int = C, events: tuple[int, ...] = (N, T)) -> dict[str, WideMoments]:
    """One of each kind: without a basis, with one of some outputs, of all of them, and with a factor."""
    mean, values = normal(*events, c), scale * normal(*events, c, seed=1).square()
    some = torch.tensor([1, 2, 5])
    three, whole = (torch.linalg.qr(normal(k, k, seed=2)).Q for k in (3, c))
    return {
        "alone": BasisMoments(mean, values),
        "some": BasisMoments(mean, values, some, three),
        "all": BasisMoments(mean, values, torch.arange(c), whole),
        "factor": FactorMoments(mean, scale**0.5 * normal(*events, c, 4, seed=3)),
    }


@pytest.mark.parametrize("name", ["alone", "some", "all", "factor"])
def test_every_answer_is_that_of_the_covariance(name: str) -> None:
    wide = cases()[name]
    whole = wide.written
    covariance = whole.covariance
    close: Callable[..., None] = torch.testing.assert_close
    close(wide.covariance, covariance)
    close(wide.variance, covariance.diagonal(dim1=-2, dim2=-1))
    close(wide.row_sums, covariance.sum(-1))
    root = wide.coloured(torch.eye(wide.dimensions, dtype=torch.float64))
    close(root @ root.mT, covariance)
    close(wide.root() @ wide.root().mT, covariance)
    close(wide.covariance_rows(slice(2, 6)), covariance[..., 2:6, :])
    close(wide.scaled(0.5).covariance, 0.25 * covariance)
    close(wide.widened(0.5).covariance, 0.5 * covariance)
    close(wide.widened(0.5).mean, wide.mean)
    for found in (wide.select(slice(1, 4)), whole.select(slice(1, 4))):
        close(found.mean, wide.mean[..., 1:4])
        close(found.covariance, covariance[..., 1:4, 1:4])
    for found in (wide.at_positions(slice(1, 4)), whole.at_positions(slice(1, 4))):
        close(found.mean, wide.mean.view(-1, C)[1:4])
        close(found.covariance, covariance.view(-1, C, C)[1:4])
    drawn = wide.sample(20000, generator=torch.Generator().manual_seed(1)) - wide.mean
    spread = torch.einsum("sntc,sntd->ntcd", drawn, drawn) / len(drawn)
    close(spread, covariance, rtol=0, atol=0.06 * float(covariance.abs().max()))


def test_variances_alone_answer_what_they_can_and_refuse_the_rest() -> None:
    factor = cases()["factor"]
    alone = VarianceMoments(factor.mean, factor.variance)
    for found, expected in (
        (alone, factor),
        (alone.scaled(0.5), factor.scaled(0.5)),
        (alone.widened(0.5), factor.widened(0.5)),
        (alone.select(slice(1, 4)), factor.select(slice(1, 4))),
        (alone.at_positions(slice(1, 4)), factor.at_positions(slice(1, 4))),
    ):
        torch.testing.assert_close(found.mean, expected.mean)
        torch.testing.assert_close(found.variance, expected.variance)
        torch.testing.assert_close(probit(found), probit(expected))
    refused: tuple[Callable[[WideMoments], object], ...] = (
        lambda moments: moments.row_sums,
        lambda moments: moments.dimensions,
        lambda moments: moments.coloured(normal(4, 2)),
        lambda moments: moments.covariance,
        lambda moments: moments.root(),
        lambda moments: moments.sample(2),
        pairwise,
        laplace_bridge,
        quasi_monte_carlo,
    )
    for asked in refused:
        with pytest.raises(UnsupportedError, match="the variances alone of 42 outputs"):
            asked(alone)


@pytest.mark.parametrize("name", ["alone", "some", "all", "factor"])
def test_counts_have_the_covariance_of_their_log_rates(name: str) -> None:
    wide = cases(scale=0.1)[name]
    close: Callable[..., None] = torch.testing.assert_close
    close(Counts.of(wide).covariance, Counts.of(wide.written).covariance)


@pytest.mark.parametrize("name", ["alone", "some", "all", "factor"])
def test_links_are_those_of_the_covariance(name: str) -> None:
    """Quasi-random points of another root are other points: they agree as closely as either does with the integral."""
    wide = cases()[name]
    for link in (probit, pairwise, laplace_bridge):
        torch.testing.assert_close(link(wide), link(wide.written))
    exact, stderr = monte_carlo(wide.written, 40000, generator=torch.Generator().manual_seed(0))
    found = quasi_monte_carlo(wide)
    assert float((found - exact).abs().max()) < 5 * float(stderr.max()) + 2e-3
    torch.testing.assert_close(found.sum(-1), torch.ones(N, T).double())


def test_the_pairs_of_many_classes_are_made_some_at_a_time() -> None:
    wide = cases()["some"]
    expected = pairwise(wide)
    for max_bytes in (1, 48 * C * 2):
        torch.testing.assert_close(pairwise(wide, max_bytes=max_bytes), expected)
        torch.testing.assert_close(pairwise(wide.written, max_bytes=max_bytes), expected)


@pytest.mark.parametrize("name", ["alone", "some", "factor"])
def test_links_over_many_classes_make_no_covariance(name: str) -> None:
    wide = cases(0.1, 900, (2,))[name]
    quasi_monte_carlo(wide)  # makes the points, which are kept
    for link in (probit, pairwise, laplace_bridge, quasi_monte_carlo):
        with Meter() as meter:
            probs = link(wide)
        assert meter.largest < 900**2 * 8
        torch.testing.assert_close(probs.sum(-1), torch.ones(2).double())


def test_a_link_that_would_take_long_says_so_before_it_starts() -> None:
    of_pairs = BasisMoments(torch.zeros(1, 50257), torch.ones(1, 50257))
    with pytest.raises(TooLargeError, match=r"'pairwise' .* about 30 s\. Try link='probit'"):
        pairwise(of_pairs)
    whole = Moments(torch.zeros(1, 5000), torch.zeros(()).expand(1, 5000, 5000))
    with pytest.raises(TooLargeError, match=r"'qmc' .* about 38 s\. Try link='probit'"):
        quasi_monte_carlo(whole)


def made(generator: torch.Generator, mixed: int = 3) -> tuple[BasisMoments, Tensor]:
    """Five outputs at two positions, of which a rotation mixes some, and their covariances from their definition."""
    mean, values = torch.randn(2, 5, generator=generator).double(), torch.rand(2, 5, generator=generator).double()
    rows = torch.tensor([4, 1, 2, 0, 3])[:mixed]
    vectors = torch.linalg.qr(torch.randn(mixed, mixed, generator=generator).double())[0]
    if mixed == 5:
        rows = torch.arange(5)
    basis = torch.eye(5, dtype=torch.float64)
    basis[rows[:, None], rows] = vectors
    return BasisMoments(mean, values, rows, vectors), basis @ values.diag_embed() @ basis.mT


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
