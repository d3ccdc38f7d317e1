"""A posterior as the prior of the next data: together they are what all data say at once."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.ground.errors import UnsupportedError
from lapwing.linalg import BlockDiagonal, Kronecker
from lapwing.posteriors import WeightPosterior
from lapwing.structures import Structure
from tests.posterior_cases import Linearised, Problem, problem, refused

EXACT: dict[str, Structure] = {"full": lw.Full(view="weights"), "diagonal": lw.Diagonal()}
FIRST = slice(0, 4)
SECOND = slice(4, 10)


def part(case: Problem, place: slice) -> tuple[Tensor, Tensor]:
    return case.x[place], case.y[place]


def moved(case: Problem) -> torch.nn.Module:
    """The network after it was trained on."""
    model = copy.deepcopy(case.model)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for value in model.parameters():
            value += 0.1 * torch.randn(value.shape, generator=generator, dtype=value.dtype)
    return model


def in_turn(case: Problem, structure: Structure, model: torch.nn.Module | None = None) -> tuple[Any, Any]:
    """The posterior of the first data, and that of the second with it as their prior."""
    recipe = lw.Laplace(case.likelihood, prior=lw.Isotropic(0.7), structure=structure)
    first = recipe.fit(case.model, part(case, FIRST))
    second = replace(recipe, prior=first.as_prior()).fit(model or case.model, part(case, SECOND))
    return first, second


@pytest.mark.parametrize("structure", EXACT)
@pytest.mark.parametrize("name", ["gaussian", "categorical", "pixels"])
def test_two_parts_in_turn_are_all_data_at_once(name: str, structure: str) -> None:
    case = problem(name)
    if name == "pixels":
        case = replace(case, x=case.x.repeat(2, 1, 1, 1), y=case.y.repeat(2, 1, 1))
    first, second = in_turn(case, EXACT[structure])
    at_once = lw.Laplace(case.likelihood, prior=lw.Isotropic(0.7), structure=EXACT[structure]).fit(
        case.model, (case.x, case.y)
    )
    assert first.log_marginal() + second.log_marginal() == pytest.approx(at_once.log_marginal(), rel=1e-12)
    gamma = first.effective_dimension() + second.effective_dimension()
    assert gamma == pytest.approx(at_once.effective_dimension(), rel=1e-10)
    torch.testing.assert_close(second.precision_operator.dense(), at_once.precision_operator.dense())
    draws = [posterior.sample(3, generator=0) for posterior in (second, at_once)]
    torch.testing.assert_close(*draws)


@pytest.mark.parametrize("structure", [*EXACT, "kfac"])
@pytest.mark.parametrize("name", ["gaussian", "categorical"])
def test_evidence_of_a_network_that_moved_is_that_of_dense_matrices(name: str, structure: str) -> None:
    case = problem(name)
    model = moved(case)
    first, second = in_turn(case, {**EXACT, "kfac": lw.KFAC()}[structure], model)
    later = Linearised(replace(case, model=model, x=case.x[SECOND], y=case.y[SECOND]), second.network)
    mean, earlier = first.network.weights, first.precision_operator.dense()
    off = later.theta - mean
    log_prior = 0.5 * (torch.logdet(earlier) - off @ earlier @ off - len(off) * math.log(2 * math.pi))
    volume = 0.5 * (len(off) * math.log(2 * math.pi) - torch.logdet(second.precision_operator.dense()))
    expected = later.log_likelihood + log_prior + volume
    assert second.log_marginal() == pytest.approx(float(expected), rel=1e-10)


def test_the_mode_under_a_prior_with_earlier_data_is_that_of_the_linear_model() -> None:
    case = problem("gaussian")
    model = moved(case)
    first, second = in_turn(case, EXACT["full"], model)
    later = Linearised(replace(case, model=model, x=case.x[SECOND], y=case.y[SECOND]), second.network)
    jacobian = later.jacobian(later.case.x).flatten(0, 1)
    residual = (later.case.y - later.outputs(later.case.x)).flatten()
    earlier = first.precision_operator.dense()
    pull = 2.5 * jacobian.mT @ residual - earlier @ (later.theta - first.network.weights)
    step = torch.linalg.solve(second.precision_operator.dense(), pull)
    found = second.mode_shift.step(second.prior_precisions, second.scale)
    torch.testing.assert_close(found, step)
    evidence = replace(second.evidence, shift=second.mode_shift)
    log_joint = float(evidence.log_joint(second.prior_precisions, second.scale))
    at = later.theta + step - first.network.weights
    after = residual - jacobian @ step
    constant = 0.5 * len(residual) * math.log(2.5 / (2 * math.pi))
    expected = constant - 0.5 * float(2.5 * after @ after + at @ earlier @ at)
    assert log_joint == pytest.approx(expected, rel=1e-10)


def test_kronecker_products_in_turn_keep_the_diagonal_of_their_sum_in_their_basis() -> None:
    case = problem("images")
    first, second = in_turn(case, lw.KFAC())
    alone = lw.Laplace(case.likelihood, structure=lw.KFAC()).fit(case.model, part(case, SECOND))
    assert isinstance(alone, WeightPosterior)
    exact = first.curvature.operator.dense() + alone.curvature.operator.dense()
    operator = second.curvature.operator
    assert isinstance(operator, BlockDiagonal)
    torch.testing.assert_close(operator.trace(), exact.trace())
    products = [(block, index) for block, index in operator.indexed_blocks if isinstance(block, Kronecker)]
    assert len(products) == 2
    for block, index in products:
        left, right = (basis.vectors.view(basis.shape[-2:]) for basis in block.complete_bases)
        basis = torch.kron(left, right)
        expected = (basis.mT @ exact[index[:, None], index] @ basis).diagonal()
        torch.testing.assert_close(block.eigenvalues(), expected)
    third = lw.Laplace(case.likelihood, prior=second.as_prior()).fit(case.model, part(case, FIRST))
    assert isinstance(third, WeightPosterior)
    trace = exact.trace() + first.curvature.operator.trace()
    torch.testing.assert_close(third.curvature.operator.trace(), trace)


def test_tuning_beside_earlier_data_finds_the_largest_evidence() -> None:
    case = problem("gaussian")
    _, second = in_turn(case, lw.KFAC(), moved(case))
    tuned = lw.tune(second)
    assert tuned.likelihood == second.likelihood and tuned.prior.earlier is second.prior.earlier
    heights = [tuned.with_prior_factor(factor).log_marginal() for factor in (0.9, 1.0, 1.1)]
    assert max(heights) == heights[1] > second.log_marginal()
    assert tuned.log_marginal() == pytest.approx(lw.tune(second, lw.MacKay(noise=False)).log_marginal(), abs=1e-6)


@pytest.mark.parametrize("carried", ["file", "pickle", "device"])
@pytest.mark.parametrize("structure", [*EXACT, "kfac"])
def test_a_prior_of_earlier_data_is_kept(structure: str, carried: str, tmp_path: Path) -> None:
    case = problem("categorical")
    _, second = in_turn(case, {**EXACT, "kfac": lw.KFAC()}[structure], moved(case))
    model = second.network.module

    def through_file(posterior: Any) -> Any:
        lw.save(posterior, tmp_path / "posterior.safetensors")
        return lw.load(tmp_path / "posterior.safetensors", model)

    ways: dict[str, Callable[[Any], Any]] = {
        "file": through_file,
        "pickle": lambda posterior: pickle.loads(pickle.dumps(posterior)),
        "device": lambda posterior: posterior.to("cpu"),
    }
    there = ways[carried](second)
    assert there.log_marginal() == pytest.approx(second.log_marginal(), rel=1e-12)
    assert there.prior.penalty(model).item() == pytest.approx(second.prior.penalty(model).item(), rel=1e-12)
    close = torch.testing.assert_close
    close(there.predict(case.new).probs, second.predict(case.new).probs)
    close(there.as_prior().penalty(model), second.as_prior().penalty(model))


def test_the_last_layer_alone_can_be_carried_on() -> None:
    case = problem("categorical")
    recipe = lw.Laplace(case.likelihood, weights=lw.LastLayer(), structure=EXACT["full"])
    first = recipe.fit(case.model, part(case, FIRST))
    second = replace(recipe, prior=first.as_prior()).fit(case.model, part(case, SECOND))
    at_once = recipe.fit(case.model, (case.x, case.y))
    torch.testing.assert_close(second.precision_operator.dense(), at_once.precision_operator.dense())
    assert first.as_prior().penalty(case.model).item() == 0.0


def test_who_does_not_know_of_earlier_data_says_so() -> None:
    case = problem("gaussian")
    first, second = in_turn(case, EXACT["full"])
    prior = first.as_prior()
    data = part(case, SECOND)
    for structure in (lw.LowRank(5), lw.Nystrom(5), lw.MatrixFree(), lw.Sampled(4), lw.Full(view="functions")):
        with refused(UnsupportedError, "a prior without earlier data for"):
            lw.Laplace(case.likelihood, prior=prior, structure=structure).fit(case.model, data)
    for structure in (lw.KFAC(), lw.Diagonal()):
        with refused(UnsupportedError, "a prior without earlier data for"):
            lw.Laplace(case.likelihood, prior=prior, structure=structure).fit(case.model, data)
    for method in (lw.EM(), lw.ELBO()):
        with refused(UnsupportedError, "a prior with mean 0 for"):
            lw.tune(second, method)
    with refused(UnsupportedError, "data of one fit alone, to change the noise"):
        lw.tune(second, lw.EvidenceGradient())
    with refused(UnsupportedError, "a prior that knows of the same earlier data"):
        second.with_hyperparameters(lw.Isotropic(), case.likelihood)
    with refused(UnsupportedError, "a posterior that holds its curvature, to be a prior"):
        lw.Laplace(case.likelihood, structure=lw.MatrixFree()).fit(case.model, data).as_prior()
