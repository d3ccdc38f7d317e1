"""Quadratic forms of a head's inputs against the products they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from lapwing.curvature.propagation import Propagation
from lapwing.curvature.quadratic_forms import RUN, TOGETHER, QuadraticForms, quadratic_forms
from lapwing.posteriors import WeightPosterior

OUTPUTS, INPUTS, EXAMPLES = 3, RUN + 5, TOGETHER + 7
EPSILON = torch.finfo(torch.float32).eps


def positive(size: int, generator: torch.Generator) -> Tensor:
    root = torch.randn(size, 2 * size, generator=generator, dtype=torch.float64)
    return root @ root.mT / size


def made(covariance: Tensor, places: Tensor) -> QuadraticForms:
    found = quadratic_forms(covariance, places, torch.zeros(0))
    assert found is not None
    return found


def naive(covariance: Tensor, places: Tensor, inputs: Tensor) -> Tensor:
    blocks = covariance[places[:, None, :, None], places[None, :, None, :]]
    return torch.einsum("ni,klij,nj->nkl", inputs.double(), blocks, inputs.double())


def test_the_covariances_of_all_pairs_of_outputs(generator: torch.Generator) -> None:
    places = torch.randperm(OUTPUTS * INPUTS, generator=generator).view(OUTPUTS, INPUTS)
    covariance = positive(OUTPUTS * INPUTS, generator)
    inputs = torch.randn(EXAMPLES, INPUTS, generator=generator)
    found, lost = made(covariance, places).covariances(inputs)
    expected = naive(covariance, places, inputs)
    assert not lost.any()
    torch.testing.assert_close(found, expected, rtol=0, atol=8 * EPSILON * float(expected.amax()))


def test_what_all_outputs_share_costs_the_others_no_digits(generator: torch.Generator) -> None:
    """As under a weak prior, that says nothing of a shift of all logits: their differences are as exact as without."""
    places = torch.arange(OUTPUTS * INPUTS).view(OUTPUTS, INPUTS)
    own = positive(OUTPUTS * INPUTS, generator)
    shift = 1e6 * torch.eye(INPUTS, dtype=torch.float64).repeat(OUTPUTS, OUTPUTS)
    inputs = torch.randn(EXAMPLES, INPUTS, generator=generator)
    found, lost = made(own + shift, places).covariances(inputs)
    expected = naive(own, places, inputs)
    contrast = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    assert not lost.any()
    torch.testing.assert_close(
        found @ contrast @ contrast, expected @ contrast @ contrast, rtol=0, atol=16 * EPSILON * float(expected.amax())
    )


@pytest.mark.parametrize("small", [1e-4, 1e-12])
def test_a_variance_that_products_would_lose_is_told(small: float, generator: torch.Generator) -> None:
    places = torch.arange(OUTPUTS * INPUTS).view(OUTPUTS, INPUTS)
    covariance = torch.block_diag(*[scale * positive(INPUTS, generator) for scale in (1.0, small, 1.0)])
    inputs = torch.randn(4, INPUTS, generator=generator)
    _, lost = made(covariance, places).covariances(inputs)
    assert lost.all()


def test_one_output_has_no_forms() -> None:
    assert quadratic_forms(torch.eye(3).double(), torch.arange(3)[None], torch.zeros(0)) is None


@pytest.mark.parametrize("few", [False, True])
def test_predictions_in_single_precision_are_as_exact_as_their_numbers(few: bool, generator: torch.Generator) -> None:
    """By forms; and at few training inputs, whose outputs are known far better than any weight, by rows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 4))
    x = torch.randn(6 if few else 90, 5, generator=generator)
    y = torch.randn(len(x), 4, generator=generator)
    recipe = lw.Laplace(lw.Gaussian(1e9), weights=lw.LastLayer(), structure=lw.Full(view="weights"))
    posterior = recipe.fit(model, (x, y))
    assert isinstance(posterior, WeightPosterior)
    many = x.repeat(15 if few else 1, 1)
    found = posterior.outputs(many).covariance.double()
    with torch.no_grad():
        _, (expected,) = Propagation(posterior.model, (posterior.precision,)).moments((many,), rounded=False)
        inputs = torch.cat([model[:-1](many), torch.ones(len(many), 1)], 1)
    forms = posterior.precision.shared_forms.known(posterior.precision.operator)
    assert forms is not None
    _, lost = forms.covariances(inputs)
    assert bool(lost.all()) if few else not bool(lost.any())
    std = expected.diagonal(dim1=1, dim2=2).sqrt()
    error = (found - expected).abs() / (std[:, :, None] * std[:, None])
    assert float(error.max()) <= 4 * EPSILON
