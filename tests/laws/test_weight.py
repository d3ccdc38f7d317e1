"""An example of weight 3 is the same example three times."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import lapwing as lw
from lapwing.linear.tangent import Tangent
from lapwing.structures import Structure
from tests.pairwise import in_turn
from tests.posterior_cases import PROBLEMS, STRUCTURES, normal, problem

TIMES = 3


EVERY = {**STRUCTURES, "sampled": lw.Sampled(4, lw.solvers.CG(rtol=1e-12))}
"""Structures; each meets a problem, some two, and one of them every problem."""


@pytest.mark.parametrize(
    ("name", "structure"),
    [
        *((name, EVERY["full-weights"]) for name in PROBLEMS),
        *(
            (name, EVERY[one])
            for one, name in in_turn(EVERY, ("tokens", "gaussian-per-output"), whole=("kfac", "sampled"))
        ),
    ],
    ids=str,
)
def test_the_posterior_is_that_of_repeated_examples(name: str, structure: Structure) -> None:
    case = problem(name)
    heavy = lw.Laplace(replace(case.likelihood, weight=float(TIMES)), structure=structure)
    posterior = heavy.fit(case.model, case.batches())
    repeated = lw.Laplace(case.likelihood, structure=structure).fit(case.model, case.batches() * TIMES)
    assert posterior.totals.observations == repeated.totals.observations
    assert posterior.totals.misfit == pytest.approx(repeated.totals.misfit)
    assert posterior.totals.nll == pytest.approx(repeated.totals.nll)
    if isinstance(structure, lw.Sampled):
        block = normal(posterior.network.size, 2)
        torch.testing.assert_close(posterior.problem.precision @ block, repeated.problem.precision @ block)
        root = posterior.problem.root.dense()
        torch.testing.assert_close(root @ root.mT, posterior.problem.curvature.dense())
        return
    assert posterior.log_marginal() == pytest.approx(repeated.log_marginal(), rel=1e-9)
    assert posterior.effective_dimension() == pytest.approx(repeated.effective_dimension(), rel=1e-9)
    ours, theirs = (it.outputs_each(case.new, [it])[0] for it in (posterior, repeated))
    torch.testing.assert_close(ours.covariance, theirs.covariance)


@pytest.mark.parametrize("weight", [1.3, 0.4])
def test_what_examples_stand_for_is_not_rounded_however_they_are_batched(weight: float) -> None:
    case = problem("gaussian")
    recipe = lw.Laplace(lw.Gaussian(weight=weight), structure=lw.Diagonal())
    whole, single = (recipe.fit(case.model, case.batches(size)) for size in (len(case.y), 1))
    assert whole.totals.observations == single.totals.observations == weight * case.y.numel()
    ours, theirs = (lw.tune(it, lw.EvidenceGradient()).likelihood for it in (whole, single))
    assert isinstance(ours, lw.Gaussian) and isinstance(theirs, lw.Gaussian)
    assert ours.noise_std == pytest.approx(theirs.noise_std, rel=1e-9)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_tangent_model_is_that_of_repeated_examples(name: str) -> None:
    case = problem(name)
    heavy = lw.Laplace(replace(case.likelihood, weight=float(TIMES)), structure=lw.Diagonal())
    ours = Tangent(heavy.fit(case.model, case.batches()).training)
    repeated = lw.Laplace(case.likelihood, structure=lw.Diagonal()).fit(case.model, case.batches() * TIMES)
    theirs = Tangent(repeated.training)
    weights = repeated.network.weights + 0.1 * normal(repeated.network.size)
    for mine, other in zip(ours.score(weights), theirs.score(weights), strict=True):
        torch.testing.assert_close(torch.as_tensor(mine), torch.as_tensor(other))


@pytest.mark.parametrize("curvature", [lw.MCFisher(200), lw.EmpiricalFisher()], ids=str)
def test_fisher_matrices_are_weighted_once(curvature: lw.MCFisher | lw.EmpiricalFisher) -> None:
    case = problem("categorical")
    diagonals: list[torch.Tensor] = []
    for weight in (1.0, float(TIMES)):
        recipe = lw.Laplace(lw.Categorical(weight=weight), structure=lw.Diagonal(), curvature=curvature)
        posterior = case.fit(recipe, generator=torch.Generator().manual_seed(0))
        diagonals.append(posterior.curvature.operator.diagonal())
    torch.testing.assert_close(diagonals[1], TIMES * diagonals[0])


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_predicted_for_one_target_has_no_weight(name: str) -> None:
    case = problem(name)
    heavy = replace(case.likelihood, weight=float(TIMES))
    posterior = lw.Laplace(case.likelihood, structure=lw.Diagonal()).fit(case.model, case.batches())
    (moments,) = posterior.outputs_each(case.new, [posterior])
    losses: list[torch.Tensor] = []
    for likelihood in (heavy, case.likelihood):
        generator = torch.Generator().manual_seed(0)
        prediction = likelihood.predictive(moments, generator=generator)
        targets = likelihood.targets_of(prediction, case.y[: len(case.new)])
        losses.append(prediction.log_prob(targets, generator=generator))
    torch.testing.assert_close(*losses)
