"""Blocks of the tangent kernel against J A⁻¹ Jᵀ from the naive Jacobian."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.curvature.kinds import GGN
from lapwing.curvature.tangent_kernel import TangentKernel
from lapwing.curvature.training_rows import InputRows
from lapwing.ground.data.inputs import take
from lapwing.jacobian.layers.base import Explicit
from lapwing.jacobian.layers.embedding import Embedding
from lapwing.jacobian.layers.linear import Linear
from lapwing.jacobian.limits import Limits
from lapwing.jacobian.network.network import Network
from tests.cases import CASES
from tests.curvature import naive
from tests.curvature.naive import Known, known, surveyed
from tests.curvature.unchanged import unchanged
from tests.pairwise import in_turn
from tests.posterior_cases import STRUCTURES, normal, problem


def kernel(case: Known) -> TangentKernel:
    return TangentKernel(case.model)


def layerwise(case: Known) -> Tensor:
    """One variance a parameter, 0 for the first of several."""
    variance = torch.empty(case.network.size, dtype=torch.float64)
    for number, place in enumerate(case.network.layout.slices.values()):
        variance[place] = 0.5 * number
    return variance if len(case.network.names) > 1 else torch.ones_like(variance)


def variances(case: Known) -> dict[str, Tensor]:
    return {
        "one": torch.full((case.network.size,), 0.7, dtype=torch.float64),
        "layerwise": layerwise(case),
        "each": torch.rand(case.network.size, dtype=torch.float64),
    }


def training_cotangents(case: Known) -> Tensor:
    blocks = GGN().cotangents(case.case.likelihood, case.outputs, case.case.targets)
    return torch.cat(list(blocks))


def test_rows_of_one_chunk_know_how_many_they_are() -> None:
    case = known("tagger")
    one, variance = kernel(case), variances(case)["one"]
    rows, few = one.rows(case.case.inputs), one.rows(case.case.inputs, training_cotangents(case)[:2])
    assert one.gram(rows, few, variance).shape == (4 * 3 * 2, 8)


@pytest.mark.parametrize(("name", "prior"), in_turn(CASES, ("one", "layerwise", "each"), whole=("lenet", "tagger")))
def test_the_training_kernel_is_that_of_the_pulled_back_rows(name: str, prior: str) -> None:
    case, variance = known(name), variances(known(name))[prior]
    cotangents = training_cotangents(case)
    rows = naive.pulled_back(case, cotangents).flatten(0, 1)
    with unchanged(case.case.model):
        found = kernel(case).training_grams(InputRows(cotangents, case.case.inputs), [variance])[0]
    torch.testing.assert_close(found, rows @ torch.diag(variance) @ rows.mT, rtol=1e-9, atol=1e-10)
    assert torch.equal(found, found.mT)


@pytest.mark.parametrize("prior", ["one", "each"])
@pytest.mark.parametrize("name", ["mlp", "lenet", "bare_parameter", "tagger"])
def test_chunks_do_not_matter(name: str, prior: str) -> None:
    case, variance = known(name), variances(known(name))[prior]
    cotangents = training_cotangents(case)
    pieces = TangentKernel(replace(case.model, limits=Limits(training=1)))
    assert len(pieces._chunks(case.case.inputs)) == 4
    rows = naive.pulled_back(case, cotangents).flatten(0, 1)
    found = pieces.training_grams(InputRows(cotangents, case.case.inputs), [variance])[0]
    torch.testing.assert_close(found, rows @ torch.diag(variance) @ rows.mT, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["mlp", "depthwise", "unet", "tagger", "bare_parameter"])
def test_the_cross_kernel_has_every_output_on_the_left(name: str) -> None:
    case = known(name)
    variance, cotangents = variances(case)["each"], training_cotangents(case)
    left = case.jacobian[1:3].flatten(0, -2)
    right = naive.pulled_back(case, cotangents).flatten(0, 1)
    new = take(case.case.inputs, slice(1, 3))
    found = kernel(case).cross(new, InputRows(cotangents, case.case.inputs), variance)
    torch.testing.assert_close(found, left @ torch.diag(variance) @ right.mT, rtol=1e-9, atol=1e-10)


def test_single_weights_can_be_uncertain() -> None:
    case = known("mlp")
    index = torch.tensor([1, 2, 30])
    network = Network(case.case.model, case.network.names, index)
    part = TangentKernel(surveyed(network, case.case.likelihood, case.case.inputs))
    variance, cotangents = torch.rand(3, dtype=torch.float64), training_cotangents(case)
    rows = naive.pulled_back(case, cotangents).flatten(0, 1)[:, index]
    found = part.training_grams(InputRows(cotangents, case.case.inputs), [variance])[0]
    torch.testing.assert_close(found, rows @ torch.diag(variance) @ rows.mT)


def factors() -> dict[str, Any]:
    g = normal(3, 4, 2, 5, 1)
    index = torch.tensor([[0, 2, 2], [1, 1, 5], [3, 0, 5]])
    return {
        "rows": Explicit("w", None, normal(3, 4, 701)),
        "outer": Linear("w", "b", g, normal(3, 2, 6, 1)),
        "lookup": Embedding("e", None, normal(3, 4, 3, 2), (6, 2), index, padding=5),
    }


@pytest.mark.parametrize("name", ["rows", "outer", "lookup"])
def test_each_variance_as_alone(name: str) -> None:
    factor = factors()[name]
    variances = normal(5, factor.rows().shape[-1]).exp()
    together = factor.covariances(variances)
    for found, variance in zip(together, variances, strict=True):
        torch.testing.assert_close(found, factor.covariance(variance), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("prior", [lw.Isotropic(0.7), lw.Layerwise((0.2, 5.0))], ids=["isotropic", "layerwise"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_each_choice_of_a_posterior_as_alone(structure: str, prior: Any) -> None:
    """Also where the noise differs, and for a low rank and in function space, where the choices share one basis."""
    case = problem("gaussian")
    posterior = case.fit(lw.Laplace(case.likelihood, structure=STRUCTURES[structure], prior=prior))
    choices = [
        posterior.with_hyperparameters(prior.with_precisions(posterior.prior_precisions * factor), lw.Gaussian(noise))
        for factor, noise in ((1e-4, 2.5), (1.0, 0.3), (1e3, 11.0))
    ]
    for choice, outputs in zip(choices, posterior.outputs_each(case.new, choices), strict=True):
        expected = choice.predict(case.new).outputs.covariance
        torch.testing.assert_close(outputs.covariance, expected, rtol=1e-8, atol=1e-12)
