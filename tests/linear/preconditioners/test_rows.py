"""Rows of some examples, and those with the largest output curvature, against dense matrices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import ConfigError, ShapeError, TooLargeError, UnsupportedError
from lapwing.linalg import Diagonal, LowRank
from lapwing.linear.preconditioners import balanced, balanced_by_shape
from lapwing.linear.problem import Problem as LinearProblem
from lapwing.posteriors import MatrixFreePosterior
from tests.linear.preconditioners.cases import close, setting
from tests.operators import GramMatrix
from tests.posterior_cases import Linearised, Problem, normal, problem, refused

NAMES = ("categorical", "images", "tokens", "pixels", "gaussian-per-output", "poisson")


def fitted(case: Problem, batch: int = 4) -> MatrixFreePosterior:
    recipe = lw.Laplace(case.likelihood, prior=lw.Isotropic(0.7), structure=lw.MatrixFree(lw.solvers.CG()))
    posterior = recipe.fit(case.model, case.batches(batch))
    assert isinstance(posterior, MatrixFreePosterior)
    return posterior


@pytest.mark.parametrize("name", NAMES)
def test_all_rows_are_the_precision_itself(name: str) -> None:
    case = problem(name)
    posterior = fitted(case)
    precision = lw.preconditioners.TopRows(10_000).approximate(posterior.problem).dense()
    expected = Linearised(case, posterior.network).ggn + 0.7 * torch.eye(posterior.network.size).double()
    torch.testing.assert_close(precision, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rank", [1, 5, 9])
def test_some_rows_are_those_of_the_largest_eigenvalues(name: str, rank: int) -> None:
    case = problem(name)
    posterior = fitted(case)
    dense = Linearised(case, posterior.network)
    f = dense.outputs(case.x)
    y = case.likelihood.canonical_targets(f, case.y)
    values, vectors = torch.linalg.eigh(case.likelihood.hessian(f, y).flatten(0, -3))
    rows = torch.einsum("nck,ncd->nkd", vectors, dense.jacobian(case.x).flatten(0, -3)).flatten(0, 1)
    kept = values.flatten() >= values.flatten().sort(descending=True).values[rank - 1]
    expected = (rows[kept].mT * values.flatten()[kept]) @ rows[kept]
    factor = lw.preconditioners.TopRows(rank).curvature(posterior.problem).factor
    assert factor.shape[1] == rank
    if name != "gaussian-per-output":  # where all examples have the same eigenvalues
        torch.testing.assert_close(factor @ factor.mT, expected, rtol=1e-9, atol=1e-10)
    assert torch.linalg.eigvalsh(dense.ggn - factor @ factor.mT).min() > -1e-9


def test_a_solve_with_them_takes_few_iterations() -> None:
    case = problem("images")
    posterior = fitted(case)
    b = torch.ones(posterior.network.size, dtype=torch.float64)
    plain = lw.solvers.CG(rtol=1e-8).solve(posterior.problem, b)
    helped = lw.solvers.CG(rtol=1e-8, preconditioner=lw.preconditioners.TopRows(25)).solve(posterior.problem, b)
    assert helped.converged
    assert helped.iterations < plain.iterations / 2


def test_of_a_network_that_is_certain_of_everything_nothing_is_left() -> None:
    case = problem("categorical")
    with torch.no_grad():
        case.model[-1].weight.zero_()
        case.model[-1].bias.zero_()[0] = 1e4
    posterior = fitted(case)
    assert not lw.preconditioners.TopRows(5).curvature(posterior.problem).factor.any()


def test_what_does_not_fit_is_refused() -> None:
    posterior = fitted(problem("categorical"))
    with refused(TooLargeError, "at most 100 bytes"):
        lw.preconditioners.TopRows(5, max_bytes=100).approximate(posterior.problem)
    with pytest.raises(ConfigError, match="rank"):
        lw.preconditioners.TopRows(0)


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


def test_operators_alone_have_no_examples() -> None:
    rows = LowRank(torch.eye(3).double())
    alone = LinearProblem(GramMatrix(rows), Diagonal(torch.ones(3).double()))
    with refused(UnsupportedError, "a linear model and data"):
        lw.preconditioners.Subsample(2).approximate(alone)


def test_a_factor_that_does_not_fit_is_refused() -> None:
    products, _ = setting()
    with refused(TooLargeError, "100 bytes"):
        lw.preconditioners.Subsample(5, max_bytes=100).approximate(products)


def test_no_examples_are_refused() -> None:
    with refused(ConfigError, "examples of at least 1"):
        lw.preconditioners.Subsample(0)
