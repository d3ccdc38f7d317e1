"""Cotangents: their outer products add up to the output curvature they stand for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lapwing.curvature.kinds import GGN, Curvature, EmpiricalFisher, Hessian, MCFisher
from lapwing.ground.errors import ConfigError, UnsupportedError
from lapwing.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    NegativeBinomial,
    Poisson,
    StudentT,
)
from lapwing.likelihoods.base import by_position, identity_cotangents
from tests.curvature import naive
from tests.curvature.naive import known

N = 3

Given = tuple[Likelihood, Tensor, Tensor]


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


GIVEN: dict[str, Callable[[], Given]] = {
    "gaussian": lambda: (Gaussian((0.5, 2.0)), normal(N, 2), normal(N, 2)),
    "gaussian-pixels": lambda: (Gaussian(2.0, event_dim=2), normal(N, 2, 2, 2), normal(N, 2, 2, 2)),
    "categorical": lambda: (Categorical(), normal(N, 3), torch.tensor([0, 2, 1])),
    "categorical-tokens": lambda: (
        Categorical(event_dim=1),
        normal(N, 2, 3),
        torch.tensor([[0, 2], [-100, 1], [1, -100]]),
    ),
    "bernoulli": lambda: (Bernoulli(), normal(N, 3), torch.randint(0, 2, (N, 3)).double()),
    "poisson": lambda: (Poisson(), normal(N, 2), torch.ones(N, 2).double()),
    "negative-binomial": lambda: (NegativeBinomial(0.7), normal(N, 2), torch.ones(N, 2).double()),
    "student-t": lambda: (StudentT(3.0, 0.7), normal(N, 2), normal(N, 2)),
    "heteroscedastic": lambda: (HeteroscedasticGaussian(), normal(N, 4), normal(N, 2)),
}


def summed(curvature: Curvature, given: Given, generator: torch.Generator | None = None) -> Tensor:
    """``sum_k u u^T`` of each example over all its outputs, ``[n, m, m]``."""
    likelihood, outputs, targets = given
    blocks = list(curvature.cotangents(likelihood, outputs, targets, generator=generator))
    assert all(block.shape[1:] == outputs.shape for block in blocks)
    u = torch.cat(blocks).flatten(2)
    return torch.einsum("kni,knj->nij", u, u)


def block_hessians(given: Given) -> Tensor:
    """The output Hessian of each example over all its outputs: one block an event position."""
    likelihood, outputs, targets = given
    c = outputs.shape[-1]
    blocks = likelihood.hessian(outputs, targets).reshape(N, -1, c, c)
    return torch.stack([torch.block_diag(*example) for example in blocks])


@pytest.mark.parametrize("name", GIVEN)
def test_the_gauss_newton_cotangents_square_to_the_output_hessian(name: str) -> None:
    given = GIVEN[name]()
    torch.testing.assert_close(summed(GGN(), given), block_hessians(given))


@pytest.mark.parametrize("name", GIVEN)
def test_sampled_cotangents_square_to_it_on_average(name: str, generator: torch.Generator) -> None:
    given, repeats = GIVEN[name](), 200
    draws = torch.stack([summed(MCFisher(2), given, generator) for _ in range(repeats)])
    errors = draws.std(0) / repeats**0.5
    assert bool(((draws.mean(0) - block_hessians(given)).abs() <= 4 * errors + 1e-12).all())
    assert bool((errors.amax((1, 2)) > 0).all())


@pytest.mark.parametrize("name", GIVEN)
def test_the_empirical_cotangent_is_the_score_at_the_label(name: str) -> None:
    likelihood, outputs, targets = GIVEN[name]()
    leaf = outputs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(-likelihood.nll(leaf, targets).sum(), leaf)
    (block,) = EmpiricalFisher().cotangents(likelihood, outputs, targets)
    torch.testing.assert_close(block.squeeze(0), gradient)


def test_samples_are_scaled_so_that_more_of_them_mean_the_same() -> None:
    given = GIVEN["categorical"]()
    likelihood, outputs, targets = given
    (one,) = MCFisher(1).cotangents(likelihood, outputs, targets, generator=torch.Generator().manual_seed(1))
    blocks = list(MCFisher(150).cotangents(likelihood, outputs, targets, generator=torch.Generator().manual_seed(1)))
    assert [len(block) for block in blocks] == [64, 64, 22]
    torch.testing.assert_close(blocks[0][0] * 150**0.5, one[0])


def test_the_same_seed_gives_the_same_samples() -> None:
    given = GIVEN["categorical-tokens"]()
    first, second = (summed(MCFisher(), given, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


def test_ignored_labels_have_no_cotangents() -> None:
    likelihood, outputs, targets = GIVEN["categorical-tokens"]()
    for curvature in (GGN(), MCFisher(3), EmpiricalFisher()):
        for block in curvature.cotangents(likelihood, outputs, targets):
            assert bool((block[:, targets == -100] == 0).all())
        assert summed(curvature, (likelihood, outputs, targets)).abs().sum() > 0


def test_many_outputs_come_in_blocks() -> None:
    given = (Categorical(), normal(2, 150), torch.tensor([0, 7]))
    blocks = list(GGN().cotangents(*given))
    assert [len(block) for block in blocks] == [64, 64, 21]
    likelihood, outputs, targets = given
    u = torch.cat(blocks)
    torch.testing.assert_close(torch.einsum("kni,knj->nij", u, u), likelihood.hessian(outputs, targets))


def test_blocks_are_as_wide_as_they_say() -> None:
    assert [GGN().width(c) for c in (3, 64, 1000)] == [3, 64, 64]
    assert [MCFisher(s).width(1000) for s in (1, 65)] == [1, 64]
    assert EmpiricalFisher().width(1000) == 1
    for given in (case() for case in GIVEN.values()):
        for curvature in (GGN(), MCFisher(2), EmpiricalFisher()):
            width = curvature.width(given[1].shape[-1])
            assert all(len(block) <= width for block in curvature.cotangents(*given))


def test_the_hessian_is_no_sum_of_outer_products() -> None:
    with pytest.raises(UnsupportedError, match="exact Hessian"):
        Hessian().cotangents(*GIVEN["categorical"]())
    assert Hessian().width(5) == 1


def test_at_least_one_sample_is_needed() -> None:
    with pytest.raises(ConfigError, match="samples of at least 1"):
        MCFisher(0)


@pytest.mark.parametrize("shape", [(N, 2), (N, 3, 2), (N, 2, 3, 2)])
def test_unit_cotangents_are_the_rows_of_the_identity(shape: tuple[int, ...]) -> None:
    blocks = list(identity_cotangents(normal(*shape)))
    assert all(block.shape == (2, *shape) for block in blocks)
    units = torch.cat(blocks).flatten(2)
    for example in range(N):
        assert torch.equal(units[:, example], torch.eye(units.shape[-1], dtype=torch.float64))


def test_columns_of_a_position_touch_no_other() -> None:
    columns = normal(5, N, 2, 2, 3)
    blocks = list(by_position(columns, width=2))
    assert [len(block) for block in blocks] == [2, 2, 1] * 4
    together = torch.cat(blocks).unflatten(0, (4, 5))
    torch.testing.assert_close(together.sum(0), columns)
    assert all(torch.count_nonzero(part.flatten(2, 3).abs().sum((0, 1, 3))) == 1 for part in together)


def test_the_fisher_of_a_network_by_sampling_is_its_gauss_newton_matrix(generator: torch.Generator) -> None:
    case, repeats = known("tagger"), 200
    exact = naive.ggn(case)
    draws = torch.empty(repeats, *exact.shape, dtype=torch.float64)
    for draw in draws:
        (u,) = MCFisher(1).cotangents(case.case.likelihood, case.outputs, case.case.targets, generator=generator)
        rows = torch.einsum("kni,nid->knd", u.flatten(2), case.jacobian.flatten(1, -2)).flatten(0, 1)
        draw.copy_(rows.mT @ rows)
    errors = draws.std(0) / repeats**0.5
    assert bool(((draws.mean(0) - exact).abs() <= 4.5 * errors + 1e-12).all())


@pytest.mark.parametrize("weight", [3.0, 0.4])
def test_an_example_that_stands_for_several_has_their_empirical_fisher(weight: float) -> None:
    """``w s sᵀ`` with the score s of one: the likelihood's own is ``w s``."""
    outputs, targets = normal(N, 3), torch.tensor([0, 2, 1])
    one = summed(EmpiricalFisher(), (Categorical(), outputs, targets))
    several = summed(EmpiricalFisher(), (Categorical(weight=weight), outputs, targets))
    torch.testing.assert_close(several, weight * one)
