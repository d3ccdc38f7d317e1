"""Evidence, functional covariances and predictions equal those of laplace-torch 0.3, to rounding.

Both hold Λ = s JᵀBJ + A at the trained weights and define the evidence as log p(y | θ*) − ½ |θ*|²_A − ½ log det Λ/det A
with all constants of the likelihood. Where a definition differs, the test says how and translates:

- Its Kronecker blocks treat a bias apart from its weight: ``KFAC(bias="separate")`` here.
- Its curvlinops backend implements KFAC-expand (or reduce, on request) as here. Its BackPACK backend mixes the two for
  convolutions; see ``test_backpack_mixes_expand_and_reduce``.
- Its curvlinops backend multiplies with a float32 identity for the full matrix: 1e-7 instead of rounding.
- A precision a layer is a precision a parameter tensor there.
- Its regression outputs carry no observation noise; its noise is a standard deviation.
- Its evidence of a Gaussian process counts the likelihood twice; see ``test_gaussian_process``.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from lapwing.curvature.blocked import BlockedCurvature
from lapwing.likelihoods import Likelihood
from lapwing.linalg import BlockDiagonal, Kronecker
from lapwing.posteriors import WeightPosterior
from lapwing.priors import Prior
from tests.posterior_cases import labels, normal, seeded

pytestmark = pytest.mark.filterwarnings("ignore")  # of the peer

PRIOR, NOISE_STD = 0.7, 0.5
STRUCTURES = {
    "full": lw.Full(view="weights"),
    "diag": lw.Diagonal(),
    "kron": lw.KFAC(bias="separate"),
}
PROBLEMS = ("classifier", "convolutional", "regression")


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))


def convnet() -> nn.Module:
    """A convolution with 9 output positions."""
    first = nn.Conv2d(1, 4, 3, stride=2, padding=1)
    return nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(16, 3))


def problem(name: str) -> tuple[nn.Module, Likelihood, Tensor, Tensor, Tensor]:
    """Network, likelihood, training data and new inputs."""
    x, new = normal(30, 3), normal(6, 3, seed=1)
    match name:
        case "classifier":
            return seeded(mlp), lw.Categorical(), x, labels(30, classes=3), new
        case "convolutional":
            images, fresh = normal(30, 1, 6, 6), normal(6, 1, 6, 6, seed=1)
            return seeded(convnet), lw.Categorical(), images, labels(30, classes=3), fresh
        case "regression":
            return seeded(mlp), lw.Gaussian(1 / NOISE_STD**2), x, normal(30, 3, seed=2), new
    raise LookupError(name)


@pytest.fixture(scope="module")
def backends() -> Any:
    """The library is loaded here and not by the module, whose import every process of the tests would wait for."""
    return pytest.importorskip("laplace.curvature")


def peer(name: str, weights: str, structure: str, backend: Any, prior: Any = PRIOR, **options: Any) -> Any:
    """laplace-torch fitted to a problem; it leaves hooks behind, so it gets a copy of the network."""
    laplace = pytest.importorskip("laplace")
    model, likelihood, x, y, _ = problem(name)
    regression = isinstance(likelihood, lw.Gaussian)
    if regression:
        options["sigma_noise"] = NOISE_STD
    fitted = laplace.Laplace(
        copy.deepcopy(model),
        "regression" if regression else "classification",
        subset_of_weights=weights,
        hessian_structure=structure,
        prior_precision=prior,
        backend=backend,
        **options,
    )
    fitted.fit(DataLoader(TensorDataset(x, y), batch_size=10))
    return fitted


def ours(name: str, weights: str, structure: str, prior: Prior | None = None) -> lw.Posterior:
    model, likelihood, x, y, _ = problem(name)
    recipe = lw.Laplace(
        likelihood,
        prior=prior or lw.Isotropic(PRIOR),
        structure=STRUCTURES[structure],
        weights=lw.All() if weights == "all" else lw.LastLayer(),
    )
    return recipe.fit(model, (x, y))


def check_same(posterior: lw.Posterior, other: Any, x: Tensor, tolerance: float = 1e-9) -> None:
    """Evidence, mean, covariance and predictions agree, relatively."""
    assert posterior.log_marginal() == pytest.approx(float(other.log_marginal_likelihood()), rel=tolerance)
    mean, covariance = other._glm_predictive_distribution(x)
    prediction = posterior.predict(x)
    scale = float(covariance.abs().max())
    if isinstance(posterior.likelihood, lw.Gaussian):
        close(prediction.mean, mean, 1e-12)
        close(prediction.outputs.covariance, covariance, tolerance * scale)
        noisy = covariance.diagonal(dim1=1, dim2=2) + other.sigma_noise**2
        close(prediction.variance, noisy, tolerance * scale)
        joint_mean, joint = other(x, joint=True)
        wide = posterior.predict(x, joint=True).outputs
        close(wide.mean.flatten(), joint_mean, 1e-12)
        close(wide.covariance.reshape(joint.shape), joint, tolerance * scale)
    else:
        close(prediction.logits.mean, mean, 1e-12)
        close(prediction.logits.covariance, covariance, tolerance * scale)
        for link in ("probit", "bridge"):
            close(posterior.predict(x, link).probs, other(x, link_approx=link), tolerance)


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected.detach().view_as(actual), rtol=tolerance, atol=tolerance)


COMBINATIONS = [(name, part, held) for name in PROBLEMS for part in ("all", "last_layer") for held in STRUCTURES]


@pytest.mark.parametrize(("name", "weights", "structure"), COMBINATIONS)
def test_same_posterior_as_curvlinops(backends: Any, name: str, weights: str, structure: str) -> None:
    other = peer(name, weights, structure, backends.CurvlinopsGGN)
    tolerance = 1e-6 if structure == "full" else 1e-9
    check_same(ours(name, weights, structure), other, problem(name)[4], tolerance)


@pytest.mark.parametrize(
    ("name", "weights", "structure"), [it for it in COMBINATIONS if it != ("convolutional", "all", "kron")]
)
def test_same_posterior_as_backpack(backends: Any, name: str, weights: str, structure: str) -> None:
    other = peer(name, weights, structure, backends.BackPackGGN)
    check_same(ours(name, weights, structure), other, problem(name)[4])


def test_tuning_by_marglik_is_the_evidence_gradient(backends: Any) -> None:
    """Its 300 steps of Adam end where our ascent does, as ``docs/migration.md`` says."""
    other = peer("classifier", "all", "kron", backends.CurvlinopsGGN)
    other.optimize_prior_precision(method="marglik", n_steps=300, lr=0.05)
    tuned = lw.tune(ours("classifier", "all", "kron"), lw.EvidenceGradient())
    assert isinstance(tuned.prior, lw.Isotropic)
    assert tuned.prior.precision == pytest.approx(float(other.prior_precision), rel=1e-4)
    assert tuned.log_marginal() == pytest.approx(float(other.log_marginal_likelihood()), rel=1e-9)


def test_backpack_mixes_expand_and_reduce(backends: Any) -> None:
    """BackPACK's convolution: G of KFAC-reduce, ⊗ T times A of KFAC-expand for T positions; the bias as in reduce."""
    model, likelihood, x, y, new = problem("convolutional")
    recipe = lw.Laplace(likelihood, prior=lw.Isotropic(PRIOR), structure=lw.KFAC(bias="separate"))
    expand = recipe.fit(model, (x, y))
    reduce = replace(recipe, structure=lw.KFAC(sharing="reduce", bias="separate")).fit(model, (x, y))
    assert isinstance(expand, WeightPosterior) and isinstance(reduce, WeightPosterior)
    whole, summed = expand.curvature.operator, reduce.curvature.operator
    assert isinstance(whole, BlockDiagonal) and isinstance(summed, BlockDiagonal)
    convolution, gradients = whole.blocks[0], summed.blocks[0]
    assert isinstance(convolution, Kronecker) and isinstance(gradients, Kronecker)
    mixture = Kronecker(gradients.left, convolution.right, 9.0 * convolution.scale)
    blocks = (mixture, summed.blocks[1], *whole.blocks[2:])
    mixed = replace(expand, curvature=BlockedCurvature(replace(whole, blocks=blocks), expand.curvature.partition))
    other = peer("convolutional", "all", "kron", backends.BackPackGGN)
    check_same(mixed, other, new)
    assert mixed.log_marginal() != pytest.approx(expand.log_marginal(), rel=1e-3)


def test_kfac_reduce(backends: Any) -> None:
    class Reduce(backends.CurvlinopsGGN):
        def kron(self, x: Tensor, y: Tensor, N: int, **options: Any) -> Any:
            return super().kron(x, y, N, kfac_approx="reduce", **options)

    model, likelihood, x, y, new = problem("convolutional")
    structure = lw.KFAC(sharing="reduce", bias="separate")
    posterior = lw.Laplace(likelihood, prior=lw.Isotropic(PRIOR), structure=structure).fit(model, (x, y))
    check_same(posterior, peer("convolutional", "all", "kron", Reduce), new)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_precision_a_layer_is_one_a_parameter_there(backends: Any, structure: str) -> None:
    there = torch.tensor([0.3, 0.3, 2.0, 2.0], dtype=torch.float64)
    other = peer("classifier", "all", structure, backends.BackPackGGN, prior=there)
    check_same(ours("classifier", "all", structure, lw.Layerwise((0.3, 2.0))), other, problem("classifier")[4])


def test_subnetwork(backends: Any) -> None:
    model, likelihood, x, y, new = problem("classifier")
    index = torch.tensor([1, 5, 30, 32, 40, 58])
    mask = torch.zeros(59, dtype=torch.bool).index_fill(0, index, True)
    other = peer("classifier", "subnetwork", "full", backends.BackPackGGN, subnetwork_indices=index)
    recipe = lw.Laplace(likelihood, prior=lw.Isotropic(PRIOR), structure=lw.Full(), weights=lw.Mask(mask))
    posterior = recipe.fit(model, (x, y))
    _, covariance = other._glm_predictive_distribution(new)
    close(posterior.predict(new).logits.covariance, covariance, 1e-9)


def test_gaussian_process(backends: Any) -> None:
    """The same posterior in function space.

    Its evidence is ½ nc log 2π + log p(y | θ*) more than the exact log N(y; m, K + σ²), which is the evidence here at
    the mode of the linear model.
    """
    model, likelihood, x, y, new = problem("regression")
    other = peer("regression", "all", "gp", backends.BackPackGGN, n_subset=len(x))
    recipe = lw.Laplace(likelihood, prior=lw.Isotropic(PRIOR), structure=lw.Full(view="functions"))
    close(recipe.fit(model, (x, y)).predict(new).outputs.covariance, other._glm_predictive_distribution(new)[1], 1e-9)
    posterior = replace(recipe, structure=lw.Full(view="weights")).fit(model, (x, y))
    assert isinstance(posterior, WeightPosterior)
    at_mode = replace(posterior.evidence, shift=posterior.mode_shift)
    evidence = at_mode.log_marginal(posterior.prior_precisions, posterior.scale)
    exact = other.log_marginal_likelihood() - other.log_likelihood - 0.5 * y.numel() * math.log(2 * math.pi)
    close(evidence, exact, 1e-9)
