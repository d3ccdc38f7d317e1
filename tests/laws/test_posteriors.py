"""Every posterior is the Gaussian its dense matrices say it is, whatever holds it."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.ground.errors import ConfigError, UnsupportedError
from lapwing.linalg import Dense, Diagonal, KroneckerChain, LowRank
from lapwing.posteriors import WeightPosterior
from lapwing.predictive import (
    Classification,
    Counts,
    HeavyTailedRegression,
    JointMoments,
    Moments,
    MultiLabel,
    OverdispersedCounts,
    Regression,
)
from tests.operators import check_matches_dense, check_symmetric
from tests.pairwise import in_turn, pairwise
from tests.posterior_cases import (
    PRIORS,
    PROBLEMS,
    STRUCTURES,
    WEIGHTS,
    Linearised,
    Problem,
    chained,
    marginal_blocks,
    normal,
    portrait,
    prior_for,
    problem,
    seeded,
)

every_problem = pytest.mark.parametrize("name", PROBLEMS)
every_structure = pytest.mark.parametrize("structure", STRUCTURES)
over_weights = pytest.mark.parametrize("structure", [name for name in STRUCTURES if name != "full-functions"])
case_of = cache(problem)


@cache
def fitted(name: str, structure: str, weights: str = "all", prior: str = "isotropic") -> lw.Posterior:
    """A posterior; only one in function space is fitted again for another prior."""
    case, recipe = case_of(name), recipe_of(name, structure, weights)
    if prior == "isotropic":
        return case.fit(recipe)
    usual = fitted(name, structure, weights)
    chosen = prior_for(prior, usual.network.uncertain)
    if isinstance(usual, WeightPosterior):
        return usual.with_hyperparameters(chosen, case.likelihood)
    return case.fit(replace(recipe, prior=chosen))


def recipe_of(name: str, structure: str, weights: str = "all") -> lw.Laplace:
    options = {"structure": STRUCTURES[structure], "weights": WEIGHTS[weights]}
    return lw.Laplace(case_of(name).likelihood, prior=lw.Isotropic(0.7), **options)


@cache
def linearised(name: str, weights: str) -> Linearised:
    return Linearised(case_of(name), fitted(name, "diagonal", weights).network)


def refusal(structure: str, weights: str, prior: str) -> type[Exception] | None:
    """The error of a combination that has no implementation."""
    if (structure, weights) == ("tridiagonal", "subnetwork"):
        return ConfigError
    if structure.startswith("kfac"):
        if weights == "subnetwork":
            return ConfigError
        return UnsupportedError if prior in ("diagonal", "g-prior") else None
    return UnsupportedError if (structure, prior) == ("full-functions", "diagonal") else None


def dense_precision(posterior: lw.Posterior, ggn: Tensor, prior: Tensor) -> Tensor:
    """Λ as the structure defines it; for KFAC its own matrix, whose factors have tests of their own."""
    if not isinstance(posterior, WeightPosterior) or isinstance(posterior.curvature.operator, Dense | LowRank):
        return ggn + torch.diag(prior)
    if isinstance(posterior.curvature.operator, Diagonal):
        return torch.diag(ggn.diagonal() + prior)
    if isinstance(posterior.curvature.operator, KroneckerChain):
        operator = posterior.curvature.operator
        return chained(operator.dense() + torch.diag(prior), operator.index)
    return posterior.curvature.operator.dense() + torch.diag(prior)


def moments(posterior: lw.Posterior, x: Tensor, *, joint: bool = False) -> Moments | JointMoments:
    """What a prediction knows of the outputs."""
    match posterior.predict(x, joint=joint):
        case Classification(logits) | MultiLabel(logits):
            return logits
        case Regression(outputs) | HeavyTailedRegression(outputs):
            return outputs
        case Counts(log_rates) | OverdispersedCounts(log_rates):
            return log_rates


def close(actual: Tensor, expected: Tensor) -> None:
    """To rounding: laws are tested in float64."""
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)


def implemented(name: str, structure: str, weights: str, prior: str) -> bool:
    return refusal(structure, weights, prior) is None


def refused(name: str, structure: str, weights: str, prior: str) -> bool:
    return not implemented(name, structure, weights, prior)


@pytest.mark.parametrize(
    "choices", pairwise(("gaussian", "tokens"), STRUCTURES, WEIGHTS, PRIORS, where=refused), ids=",".join
)
def test_what_is_not_implemented_is_refused(choices: tuple[str, str, str, str]) -> None:
    error = refusal(*choices[1:])
    assert error is not None
    with pytest.raises(error, match=r"Expected .* Got .* Try "):
        fitted(*choices).predict(case_of(choices[0]).new)


NETWORKS = ("gaussian", "images", "tokens", "pixels")
"""Problems whose networks have different layers."""

LIKELIHOODS = [name for name in PROBLEMS if name not in NETWORKS]
"""Problems of one network with other likelihoods."""


def met(name: str, structure: str, weights: str, prior: str) -> bool:
    """Chains of Kronecker products take precisions of single weights where all layers are dense."""
    single = structure == "tridiagonal" and prior in ("diagonal", "g-prior")
    return implemented(name, structure, weights, prior) and not (single and name != "gaussian")


CHOICES = [
    *pairwise(NETWORKS, STRUCTURES, WEIGHTS, PRIORS, where=met),
    *((name, structure, "all", "isotropic") for structure, name in in_turn(STRUCTURES, LIKELIHOODS, whole=("kfac",))),
]


@pytest.mark.parametrize("choices", CHOICES, ids=",".join)
def test_is_the_gaussian_of_its_dense_matrices(choices: tuple[str, str, str, str]) -> None:
    name, structure, weights, prior = choices
    case, posterior, model = case_of(name), fitted(name, structure, weights, prior), linearised(name, weights)
    precisions = posterior.prior.diagonal(posterior.network.uncertain, case.new.double())
    precision = dense_precision(posterior, model.ggn, precisions)
    operator = posterior.precision_operator
    check_symmetric(operator)
    check_matches_dense(operator, precision, tolerance=1e-11)
    assert posterior.log_marginal() == pytest.approx(model.log_marginal(precision, precisions), rel=1e-10)
    gamma = len(precision) - (precisions * torch.linalg.inv(precision).diagonal()).sum()
    assert posterior.effective_dimension() == pytest.approx(float(gamma), rel=1e-9)
    joint, marginal = moments(posterior, case.new, joint=True), moments(posterior, case.new)
    covariance = model.joint_covariance(precision)
    if name == "heteroscedastic":  # a regression shows the moments of its means, not those of their noise
        covariance = covariance[:, :2, :, :2]
    close(joint.covariance, covariance)
    close(marginal.covariance, marginal_blocks(covariance))
    close(marginal.mean, model.new[0][..., : marginal.mean.shape[-1]])
    close(joint.mean, marginal.mean)


@pytest.mark.parametrize(
    ("name", "weights", "prior"), pairwise(PROBLEMS, ["all", "subnetwork"], ["isotropic", "layerwise"])
)
def test_weights_and_functions_are_two_views_of_one_posterior(name: str, weights: str, prior: str) -> None:
    left, right = (fitted(name, f"full-{view}", weights, prior) for view in ("weights", "functions"))
    x = case_of(name).new
    assert left.log_marginal() == pytest.approx(right.log_marginal(), rel=1e-8)
    assert left.effective_dimension() == pytest.approx(right.effective_dimension(), rel=1e-8)
    for joint in (False, True):
        a, b = moments(left, x, joint=joint), moments(right, x, joint=joint)
        torch.testing.assert_close(a.mean, b.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(a.covariance, b.covariance, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["gaussian", "gaussian-per-output"])
@every_structure
def test_other_choices_are_those_of_another_fit(name: str, structure: str) -> None:
    case, recipe = case_of(name), recipe_of(name, structure)
    prior, likelihood = lw.Isotropic(0.2), case.likelihood.scaled(7.0)
    changed = fitted(name, structure).with_hyperparameters(prior, likelihood)
    again = replace(case, likelihood=likelihood).fit(replace(recipe, likelihood=likelihood, prior=prior))
    assert changed.log_marginal() == pytest.approx(again.log_marginal(), rel=1e-9)
    assert changed.effective_dimension() == pytest.approx(again.effective_dimension(), rel=1e-9)
    close(changed.predict(case.new).covariance, again.predict(case.new).covariance)
    close(changed.predict(case.new, joint=True).covariance, again.predict(case.new, joint=True).covariance)


def check_covariance(draws: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Sample moments within five standard errors of what they estimate, in every entry."""
    count, centred = len(draws), draws - mean
    variance = covariance.diagonal()
    error = ((variance[:, None] * variance + covariance.square()) / count).sqrt()
    assert ((centred.mT @ centred / count - covariance).abs() <= 5 * error + 1e-12).all()
    assert (centred.mean(0).abs() <= 5 * (variance / count).sqrt() + 1e-12).all()
    assert (centred.square().mean(0) >= 0.8 * variance).all()


@over_weights
@pytest.mark.parametrize("name", ["categorical", "images"])
def test_drawn_weights_have_the_posterior_covariance(name: str, structure: str, generator: torch.Generator) -> None:
    posterior = fitted(name, structure)
    draws = posterior.sample(20_000, generator=generator)
    covariance = torch.linalg.inv(posterior.precision_operator.dense())
    check_covariance(draws, posterior.network.weights, covariance)


@every_structure
@pytest.mark.parametrize("name", ["categorical", "tokens"])
def test_drawn_functions_have_the_joint_covariance(name: str, structure: str, generator: torch.Generator) -> None:
    posterior, x = fitted(name, structure), case_of(name).new[:2]
    draws = posterior.sample_functions(x, 20_000, generator=generator)
    joint = moments(posterior, x, joint=True)
    size = joint.mean.numel()
    assert draws.shape == (20_000, *joint.mean.shape)
    check_covariance(draws.flatten(1), joint.mean.flatten(), joint.covariance.reshape(size, size))


@over_weights
@pytest.mark.parametrize("name", ["categorical", "tokens"])
def test_few_drawn_functions_are_those_of_drawn_weights(name: str, structure: str) -> None:
    """No more than there are outputs; the same seed draws the same functions at other inputs."""
    posterior, case = fitted(name, structure), case_of(name)
    x = case.new
    dense = Linearised(case, posterior.network)
    deviations = posterior.sample(3, generator=4) - posterior.network.weights
    functions = posterior.sample_functions(x, 3, generator=4)
    close(functions, dense.outputs(x) + torch.einsum("n...d,sd->sn...", dense.jacobian(x), deviations))
    close(posterior.sample_functions(x[:2], 3, generator=4), functions[:, :2])


@over_weights
def test_networks_with_drawn_weights_agree_with_the_linearised_one_where_it_is_linear(
    structure: str, generator: torch.Generator
) -> None:
    model = seeded(lambda: torch.nn.Linear(3, 2))
    case = Problem(model, lw.Gaussian(2.0), normal(10, 3), normal(10, 2, seed=1), normal(4, 3, seed=2))
    posterior = case.fit(lw.Laplace(case.likelihood, structure=STRUCTURES[structure]))
    draws = posterior.predict(case.new, linearised=False, samples=500, generator=generator)
    joint = posterior.predict(case.new, joint=True)
    assert isinstance(draws, Regression) and isinstance(joint, Regression)
    check_covariance(draws.outputs.values.flatten(1), joint.mean.flatten(), joint.outputs.covariance.reshape(8, 8))


@every_structure
def test_the_same_generator_gives_the_same_numbers(structure: str) -> None:
    case = case_of("categorical")
    recipe = recipe_of("categorical", structure)
    random_fit = structure not in ("low-rank", "nystrom")  # which are made from the GGN alone
    recipe = replace(recipe, curvature=lw.MCFisher(2)) if random_fit else recipe

    def numbers(seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        posterior = case.fit(recipe, generator=generator)
        drawn = [torch.tensor(posterior.log_marginal())] if random_fit else []
        drawn += [
            posterior.sample_functions(case.new, 3, generator=generator),
            posterior.predict(case.new, "mc", samples=5, generator=generator).probs,
        ]
        drawn.append(posterior.sample(3, generator=generator))
        drawn.append(posterior.predict(case.new, linearised=False, samples=3, generator=generator).probs)
        return drawn

    first, again, other = numbers(0), numbers(0), numbers(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@every_structure
@pytest.mark.parametrize("name", ["tokens"])
def test_a_part_of_the_inputs_has_a_part_of_the_predictions(name: str, structure: str) -> None:
    posterior, x = fitted(name, structure), case_of(name).new
    part = torch.tensor([2, 0])
    everything, some = moments(posterior, x), moments(posterior, x[part])
    close(some.mean, everything.mean[part])
    close(some.covariance, everything.covariance[part])
    close(posterior.predict(x[part]).probs, posterior.predict(x).probs[part])


@every_structure
@pytest.mark.parametrize("name", ["gaussian", "images"])
def test_order_and_batches_of_the_data_do_not_matter(name: str, structure: str) -> None:
    case, usual = case_of(name), fitted(name, structure)
    order = torch.randperm(len(case.x))
    x, y = case.x[order], case.y[order]
    recipe = recipe_of(name, structure)
    for data in (list(zip(x.split(1), y.split(1), strict=True)), (x, y)):
        other = recipe.fit(case.model, data)
        assert other.log_marginal() == pytest.approx(usual.log_marginal(), rel=1e-10)
        close(other.predict(case.new).covariance, usual.predict(case.new).covariance)


@every_structure
def test_fitting_twice_is_fitting_once(structure: str) -> None:
    case, recipe = case_of("images"), recipe_of("images", structure)
    model = copy.deepcopy(case.model)
    first, second = recipe.fit(model, case.batches()), recipe.fit(model, case.batches())
    assert first.log_marginal() == second.log_marginal()
    assert torch.equal(first.predict(case.new).probs, second.predict(case.new).probs)


@every_structure
@pytest.mark.parametrize("name", ["gaussian", "images", "tokens"])
def test_the_module_is_left_bit_identical(name: str, structure: str) -> None:
    case = case_of(name)
    model = copy.deepcopy(case.model)
    for value in model.parameters():
        value.grad = torch.ones_like(value)
    model[0].eval() if isinstance(model, torch.nn.Sequential) else model.norm.eval()
    handle = next(model.children()).register_forward_hook(lambda module, args, output: None)
    before = portrait(model)
    posterior = recipe_of(name, structure).fit(model, case.batches())
    posterior.predict(case.new)
    posterior.sample_functions(case.new)
    posterior.log_marginal()
    posterior.predict(case.new, linearised=False, samples=2)
    assert portrait(model) == before
    handle.remove()


@pytest.mark.gpu
@every_structure
@every_problem
def test_the_gpu_gives_the_numbers_of_the_cpu(name: str, structure: str) -> None:
    case, usual = case_of(name), fitted(name, structure)
    model = copy.deepcopy(case.model).cuda()
    posterior = recipe_of(name, structure).fit(model, case.batches())
    there, here = moments(posterior, case.new), moments(usual, case.new)
    assert there.covariance.is_cuda
    close(there.mean.cpu(), here.mean)
    close(there.covariance.cpu(), here.covariance)
    assert posterior.log_marginal() == pytest.approx(usual.log_marginal(), rel=1e-9)
    assert posterior.effective_dimension() == pytest.approx(usual.effective_dimension(), rel=1e-8)
