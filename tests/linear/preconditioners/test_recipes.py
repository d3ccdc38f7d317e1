"""Preconditioners against the dense matrices they stand for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import ConfigError, ShapeError, TooLargeError, UnsupportedError
from lapwing.linalg import Diagonal, LowRank, Structured
from lapwing.linear.preconditioners import Pivots, Preconditioner, approximation, balanced, balanced_by_shape
from lapwing.linear.problem import Problem
from lapwing.posteriors import MatrixFreePosterior
from tests.operators import GramMatrix
from tests.posterior_cases import Linearised, normal, problem, refused


def setting(name: str = "images", prior: lw.Isotropic | None = None) -> tuple[Problem, Linearised]:
    """A problem of products, and the same one as dense matrices."""
    case = problem(name)
    structure = lw.MatrixFree(lw.solvers.CG())
    posterior = case.fit(lw.Laplace(case.likelihood, prior=prior or lw.Isotropic(0.7), structure=structure))
    assert isinstance(posterior, MatrixFreePosterior)
    return posterior.problem, Linearised(case, posterior.network)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)


def test_all_examples_are_the_precision_itself() -> None:
    products, dense = setting()
    close(
        lw.preconditioners.Subsample(10).approximate(products).dense(),
        dense.ggn + 0.7 * torch.eye(products.size).double(),
    )


def test_some_examples_stand_for_all() -> None:
    products, dense = setting("gaussian")
    identity = torch.eye(products.size).double()
    plain = lw.preconditioners.Subsample(5, scaled=False).approximate(products).dense() - 0.7 * identity
    scaled = lw.preconditioners.Subsample(5).approximate(products).dense() - 0.7 * identity
    close(scaled, 2 * plain)
    assert torch.linalg.eigvalsh(dense.ggn - plain).min() > -1e-10
    assert plain.trace() > 0


def test_each_label_stands_for_its_own() -> None:
    """Three of nine and three of four examples: each counts three times, or four thirds."""
    case = problem("categorical")
    y = torch.tensor([0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0])
    case = replace(case, x=normal(13, 3), y=y)
    posterior = case.fit(lw.Laplace(case.likelihood, prior=lw.Isotropic(0.7), structure=lw.MatrixFree()))
    assert isinstance(posterior, MatrixFreePosterior)
    expected = torch.zeros(posterior.network.size, posterior.network.size).double()
    for label, weight in ((0, 3.0), (1, 4 / 3)):
        first = (y == label).nonzero()[:3, 0]
        expected += weight * Linearised(replace(case, x=case.x[first], y=y[first]), posterior.network).ggn
    close(lw.preconditioners.Subsample(6).curvature(posterior.problem).dense(), expected)


def positions(targets: Tensor, batch: int = 2, *, shuffle: bool = False) -> Data:
    """Data whose inputs are their own positions."""
    x = torch.arange(len(targets)).double()[:, None]
    return Data(DataLoader(TensorDataset(x, targets), batch_size=batch, shuffle=shuffle))


@pytest.mark.parametrize("shuffle", [False, True])
def test_examples_are_spread_over_the_labels(shuffle: bool) -> None:
    targets = torch.tensor([0, 0, -100, 0, 0, 1, 1, -100, 2])
    data = positions(targets, shuffle=shuffle)
    for count, expected in ((3, [0, 1, 2]), (5, [0, 0, 1, 1, 2]), (50, [0, 0, 0, 0, 1, 1, 2])):
        inputs, labels, weights = balanced(data, count)
        for label, examples in ((0, 4), (1, 2), (2, 1)):
            assert float(weights[labels == label].sum()) == pytest.approx(examples)
        assert labels.sort().values.tolist() == expected
        assert isinstance(inputs, Tensor) and targets[inputs[:, 0].long()].equal(labels)


def test_examples_of_too_few_labels_stand_for_all() -> None:
    weights = balanced(positions(torch.tensor([0, 0, 1, 2, -100])), 2)[2]
    assert weights.tolist() == pytest.approx([8 / 3, 4 / 3])


def test_examples_without_labels_are_spread_over_the_data() -> None:
    inputs, _, weights = balanced(positions(torch.zeros(9, 2)), 3)
    assert weights.tolist() == [3.0, 3.0, 3.0]
    assert isinstance(inputs, Tensor) and inputs[:, 0].tolist() == [0, 4, 8]


def test_a_recipe_that_can_change_is_refused() -> None:
    @dataclass
    class Mutable:
        def approximate(self, problem: Problem) -> Structured:
            return problem.with_curvature(LowRank(problem.root.dense()))

    with refused(ConfigError, "frozen=True"):
        approximation(setting()[0], Mutable())


@pytest.mark.parametrize(
    "recipe",
    [
        lw.Diagonal(),
        lw.KFAC(),
        lw.LowRank(500),
        lw.preconditioners.PivotedCholesky(500),
        lw.preconditioners.Subsample(10),
    ],
)
def test_noise_scales_the_curvature_and_not_the_prior(recipe: Preconditioner) -> None:
    case = problem("gaussian")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.MatrixFree(lw.solvers.CG())))
    noisier = posterior.with_hyperparameters(lw.Isotropic(0.3), lw.Gaussian(10.0))
    again = case.fit(lw.Laplace(lw.Gaussian(10.0), prior=lw.Isotropic(0.3), structure=lw.MatrixFree(lw.solvers.CG())))
    assert isinstance(noisier, MatrixFreePosterior) and isinstance(again, MatrixFreePosterior)
    found, expected = (recipe.approximate(it.problem).dense() for it in (noisier, again))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)


def test_the_gradient_is_that_of_the_log_likelihood() -> None:
    products, dense = setting()
    case = dense.case
    f = dense.outputs(case.x)
    score = case.likelihood.score(f, case.likelihood.canonical_targets(f, case.y))
    gradient = torch.einsum("nc,ncd->d", score, dense.jacobian(case.x))
    expected = torch.outer(gradient, gradient) + 0.7 * torch.eye(products.size).double()
    close(lw.preconditioners.RankOne().approximate(products).dense(), expected)


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


@pytest.mark.parametrize(
    "recipe",
    [
        lw.Diagonal(),
        lw.KFAC(),
        lw.LowRank(5),
        lw.preconditioners.PivotedCholesky(5),
        lw.preconditioners.Subsample(5),
        lw.preconditioners.RankOne(),
    ],
)
def test_every_recipe_is_a_preconditioner_built_once(recipe: Preconditioner) -> None:
    products, _ = setting()
    first = approximation(products, recipe)
    assert isinstance(recipe, Preconditioner)
    assert approximation(products, recipe) is first
    identity = torch.eye(products.size).double()
    close(first.solve(first @ identity), identity)


def test_priors_that_differ_are_taken_into_account() -> None:
    case = problem("images")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=lw.MatrixFree(lw.solvers.CG())))
    precisions = torch.linspace(0.1, 10.0, posterior.network.size, dtype=torch.float64)
    changed = posterior.with_hyperparameters(lw.DiagonalPrior(precisions), case.likelihood)
    assert isinstance(changed, MatrixFreePosterior)
    exact = changed.precision_operator.dense()
    for recipe in (lw.LowRank(500), lw.preconditioners.PivotedCholesky(500)):
        torch.testing.assert_close(recipe.approximate(changed.problem).dense(), exact, rtol=1e-7, atol=1e-7)


def test_operators_alone_have_no_examples() -> None:
    rows = LowRank(torch.eye(3).double())
    alone = Problem(GramMatrix(rows), Diagonal(torch.ones(3).double()))
    with refused(UnsupportedError, "a linear model and data"):
        lw.preconditioners.Subsample(2).approximate(alone)


def test_a_factor_that_does_not_fit_is_refused() -> None:
    products, _ = setting()
    with refused(TooLargeError, "100 bytes"):
        lw.preconditioners.Subsample(5, max_bytes=100).approximate(products)


def test_bad_options() -> None:
    with refused(ConfigError, "rank of at least 1"):
        lw.preconditioners.PivotedCholesky(0)
    with refused(ConfigError, "examples of at least 1"):
        lw.preconditioners.Subsample(0)


def test_examples_of_several_shapes_are_chosen_shape_by_shape() -> None:
    """Sequences of two lengths, each read in two batches, are not put together; every example stands for as many."""
    lengths = (3, 4, 3, 4)
    batches = [(torch.full((2, t), i), torch.full((2, t), i)) for i, t in enumerate(lengths)]
    short, long = balanced_by_shape(Data(batches), 4)
    assert torch.equal(short[0], short[1]) and short[0].shape[1] == 3 and long[0].shape[1] == 4
    assert len(short[2]) + len(long[2]) == 4 and float(short[2].sum() + long[2].sum()) == 8.0
    labels = [(torch.zeros(3, 2), torch.tensor([0, 0, 1])), (torch.zeros(2, 5), torch.tensor([1, 1]))]
    parts = balanced_by_shape(Data(labels), 4)
    assert [part[1].tolist() for part in parts] == [[0, 1, 0], [1]]
    torch.testing.assert_close(torch.cat([part[2] for part in parts]), torch.tensor([1.0, 1.5, 1.0, 1.5]).double())
    with pytest.raises(ShapeError, match="padding"):
        balanced(Data(batches), 4)
