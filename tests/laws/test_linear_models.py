"""Every linear model, a network, a matrix or a projector after a network, is the one its dense features say it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from lapwing.likelihoods.base import by_position
from lapwing.linalg import Dense, Diagonal
from lapwing.linear.evidence import LogEvidence
from lapwing.linear.log_det_ratio import Determinant, complexity_of, complexity_of_compression
from lapwing.linear.model import LinearModel
from lapwing.linear.preconditioners import PivotedCholesky, RankOne, Subsample, TopRows
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import CG, SGD
from lapwing.linear.tangent import Tangent
from tests.linear_models import CASES, Case, case
from tests.posterior_cases import normal

SCALE = 1.7
every_model = pytest.mark.parametrize("name", CASES)
gaussian = pytest.mark.parametrize("name", [name for name in CASES if name.endswith("gaussian")])


def prior_of(given: Case) -> Diagonal:
    """A prior that tells the weights apart."""
    return Diagonal(torch.linspace(0.5, 3.0, len(given.model.weights), dtype=torch.float64))


def dense_precision(given: Case) -> Tensor:
    return SCALE * given.ggn + torch.diag(prior_of(given).values)


@every_model
def test_it_is_a_linear_model_of_its_features(name: str) -> None:
    given, k = case(name), 3
    model, n, d = given.model, len(given.outputs), len(given.model.weights)
    assert isinstance(model, LinearModel) and model.layout.size == d
    assert given.outputs.shape[1:] == model.event and model.data.examples == n
    v, u = normal(d, k), normal(k, *given.outputs.shape, seed=1)
    f = torch.cat([chunk.outputs for chunk in model.visit(k)])
    pushed = torch.cat([chunk.push(v) for chunk in model.visit(k)], dim=1)
    pulled, start = torch.zeros(d, k).double(), 0
    for chunk in model.visit(k):
        pulled += chunk.pull(u[:, start : start + chunk.examples])
        start += chunk.examples
    seen = model.likelihood.basis(f)  # what no probability sees may be off
    torch.testing.assert_close(f, given.outputs)
    torch.testing.assert_close(pushed @ seen, torch.einsum("ncd,dk->knc", given.features, v) @ seen)
    u = u @ seen @ seen.mT
    pulled = sum(c.pull(part) for c, part in zip(model.visit(k), u.split(chunk_sizes(model, k), 1), strict=True))
    torch.testing.assert_close(pulled, torch.einsum("knc,ncd->dk", u, given.features))
    torch.testing.assert_close((u * pushed).sum((1, 2)), (pulled * v).sum(0))


def chunk_sizes(model: LinearModel, columns: int) -> list[int]:
    return [chunk.examples for chunk in model.visit(columns)]


@every_model
def test_predictions_rows_and_the_diagonal_are_those_of_the_features(name: str) -> None:
    given = case(name)
    model, d = given.model, len(given.model.weights)
    there, v, u = model.on(given.new), normal(d, 2), normal(2, *given.new_features.shape[:2], seed=1)
    torch.testing.assert_close(there.push(v), torch.einsum("ncd,dk->knc", given.new_features, v))
    torch.testing.assert_close(there.pull(u), torch.einsum("knc,ncd->dk", u, given.new_features))

    def directions(f: Tensor, place: slice) -> Iterator[Tensor]:
        yield u[:, place]

    rows = torch.cat(list(model.rows(given.new, directions)))
    torch.testing.assert_close(rows, torch.einsum("knc,ncd->nkd", u, given.new_features))
    torch.testing.assert_close(model.diagonal(), given.ggn.diagonal())


@every_model
def test_the_curvature_its_root_and_its_pieces_are_those_of_the_features(name: str) -> None:
    given = case(name)
    curvature = Problem.of(given.model, prior_of(given)).curvature
    torch.testing.assert_close(curvature.dense(), given.ggn)
    root = curvature.root.dense()
    torch.testing.assert_close(root @ root.mT, given.ggn)
    torch.testing.assert_close(curvature.root.T.dense(), root.mT)
    pieces = [piece for batch in curvature.parts(2, batch=4) for piece in batch]
    torch.testing.assert_close(sum(piece.dense() for piece in pieces), given.ggn)


@every_model
def test_both_views_have_one_determinant_one_effective_dimension_and_one_variance(name: str) -> None:
    given, prior = case(name), prior_of(case(name))
    weights = Problem.of(given.model, prior, SCALE)
    functions = weights.function_view()
    precision, dual, unit = weights.precision.dense(), functions.precision.dense(), prior.values.sqrt()
    torch.testing.assert_close(precision, dense_precision(given))
    truth = torch.logdet(dense_precision(given)) - prior.logdet()
    torch.testing.assert_close(torch.logdet(dual), truth)
    inverse, dual_inverse = torch.linalg.inv(dense_precision(given)), torch.linalg.inv(dual)
    gamma = SCALE * (given.ggn @ inverse).trace()
    torch.testing.assert_close(len(dual) - dual_inverse.trace(), gamma)
    torch.testing.assert_close(functions.curvature.diagonal(), functions.curvature.dense().diagonal())
    root = functions.curvature.root
    torch.testing.assert_close(root.dense() @ root.T.dense(), functions.curvature.dense())
    new = given.new_features.flatten(0, 1)
    cross = weights.root.T @ prior.solve(new.mT)
    solve = CG(rtol=1e-12).solve
    of_weights = new @ solve(weights, new.mT.contiguous()).value
    of_functions = new @ prior.solve(new.mT) - SCALE * cross.mT @ solve(functions, cross).value
    torch.testing.assert_close(of_weights, new @ inverse @ new.mT, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(of_functions, new @ inverse @ new.mT, rtol=1e-8, atol=1e-9)
    group = (unit > 1).long()
    grams = torch.stack([(new * (group == g)) @ new.mT for g in (0, 1)])
    two = torch.tensor([0.4, 2.0], dtype=torch.float64)
    scale = torch.tensor(SCALE, dtype=torch.float64)
    by_weights = complexity_of(Dense(new.mT @ new), group).log_det_ratio(two, scale)
    torch.testing.assert_close(by_weights, Determinant.of_grams(grams).log_det_ratio(two, scale))
    everything = complexity_of_compression(torch.eye(len(group)).double(), new.mT @ new, group)
    torch.testing.assert_close(everything.log_det_ratio(two, scale), by_weights)


@gaussian
def test_mean_and_evidence_are_those_of_the_gaussian_model(name: str) -> None:
    """The evidence at the mode is the density of the targets, in either view."""
    given, prior = case(name), Diagonal(torch.full_like(case(name).model.weights, 0.7))
    model, noise = given.model, 1 / given.hessian().diagonal()
    j = given.features.flatten(0, 1)
    offset = given.outputs.flatten() - j @ model.weights
    kernel = j @ prior.solve(j.mT)
    y = MultivariateNormal(offset, kernel + torch.diag(noise) / SCALE)
    mode = Tangent(model).mode(prior, SCALE, rtol=1e-12)
    rest = given.targets.flatten() - offset
    expected = torch.linalg.solve(SCALE * given.ggn + prior.dense(), SCALE * j.mT @ (rest / noise))
    torch.testing.assert_close(mode.weights, expected, rtol=1e-8, atol=1e-9)
    weights = Problem.of(model, prior, SCALE)
    functions = weights.function_view()
    dual = CG(rtol=1e-13).solve(functions, SCALE * rest / noise.sqrt())
    torch.testing.assert_close(prior.solve(weights.root @ dual.value), expected, rtol=1e-8, atol=1e-9)
    group = torch.zeros(j.shape[1], dtype=torch.long)
    both = (complexity_of(Dense(given.ggn), group), Determinant.of_grams(0.7 * functions.curvature.dense()[None]))
    for complexity in both:
        sizes, squares = torch.tensor([float(len(group))]), mode.weights.square().sum().view(1)
        evidence = LogEvidence(complexity, squares, sizes.double(), mode.nll, mode.misfit, float(len(rest)))
        found = evidence.log_marginal(torch.tensor([0.7]).double(), torch.tensor(SCALE).double())
        torch.testing.assert_close(found, y.log_prob(given.targets.flatten()), rtol=1e-7, atol=1e-7)


@every_model
@pytest.mark.parametrize("recipe", [PivotedCholesky(40), Subsample(7), TopRows(40)], ids=lambda r: type(r).__name__)
def test_preconditioners_with_all_rows_are_the_precision(name: str, recipe: PivotedCholesky) -> None:
    given = case(name)
    approximate = recipe.approximate(Problem.of(given.model, prior_of(given), SCALE))
    torch.testing.assert_close(approximate.dense(), dense_precision(given), rtol=1e-7, atol=1e-7)


@every_model
def test_rank_one_is_the_score(name: str) -> None:
    given = case(name)
    score = given.model.likelihood.score(given.outputs, given.targets)
    gradient = torch.einsum("nc,ncd->d", score, given.features)
    made = RankOne().curvature(Problem.of(given.model, prior_of(given))).dense()
    torch.testing.assert_close(made, torch.outer(gradient, gradient))


@pytest.mark.parametrize("name", ["matrix gaussian", "projector gaussian"])
def test_descent_finds_what_conjugate_gradients_find(name: str) -> None:
    given = case(name)
    prior = Diagonal(float(given.ggn.trace()) / 2 * torch.ones_like(given.model.weights))
    for problem in (Problem.of(given.model, prior), Problem.of(given.model, prior).function_view()):
        b = normal(problem.size, 2, seed=8)
        found = SGD(batch=len(given.outputs), rtol=1e-6).solve(problem, b)
        assert found.converged
        torch.testing.assert_close(found.value, CG(rtol=1e-12).solve(problem, b).value, rtol=1e-4, atol=1e-5)


def test_cotangents_of_a_root_act_on_one_position_each() -> None:
    root = normal(2, 3, 4, 5)
    blocks = list(by_position(root.movedim(-1, 0)))
    assert len(blocks) == 3 and all(block.shape == (5, 2, 3, 4) for block in blocks)
    torch.testing.assert_close(sum(blocks), root.movedim(-1, 0))
