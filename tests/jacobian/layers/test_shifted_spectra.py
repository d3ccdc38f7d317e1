"""Covariances under many priors: eigenvalues by nodes, and what layers of each kind make of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lapwing.jacobian.layers.base import Explicit, Factor
from lapwing.jacobian.layers.embedding import Embedding
from lapwing.jacobian.layers.linear import Linear
from lapwing.jacobian.layers.shifted_spectra import SEGMENT, SPACING, ShiftedSpectra, nodes, segments
from tests.posterior_cases import normal

SHIFTS = torch.logspace(-4, 6, 13, dtype=torch.float64)


def spectra(outputs: int, inputs: int) -> ShiftedSpectra:
    """Eigenvalues over many decades, some of them 0, under many priors and two noises."""
    left = torch.logspace(-7, 2, outputs, dtype=torch.float64)
    right = torch.logspace(1, -5, inputs, dtype=torch.float64)
    left[0] = 0.0
    scales = torch.full_like(SHIFTS, 0.7)
    scales[3] = 2.5
    return ShiftedSpectra(left, right, scales, SHIFTS, like=left)


def test_nodes_are_exact_at_both_ends_and_as_good_as_said_between() -> None:
    values = torch.logspace(-9, 4, 200, dtype=torch.float64)[torch.randperm(200)]
    found = nodes(values, 1e-7)
    at_nodes = torch.zeros(len(found.values), len(values), dtype=torch.float64)
    for node, (start, stop) in enumerate(zip(found.starts, found.starts[1:], strict=False)):
        at_nodes[node, found.order[start:stop]] += found.lower[start:stop]
        if node + 1 < len(found.values):
            at_nodes[node + 1, found.order[start:stop]] += 1 - found.lower[start:stop]
    assert found.values[0] == 0.0 and bool((found.values.diff() > 0).all())
    torch.testing.assert_close(at_nodes.sum(0), torch.ones_like(values))
    counted = values > 1e-7
    for shift in torch.logspace(-12, 8, 41, dtype=torch.float64):
        by_nodes = (at_nodes / (found.values[:, None] + shift)).sum(0)[counted]
        error = by_nodes * (values[counted] + shift) - 1
        assert float(error.min()) > -(SPACING**2) / 16 and float(error.max()) < 1e-12
    far = (at_nodes / (found.values[:, None] + 1e8)).sum(0) * (values + 1e8)
    torch.testing.assert_close(far, torch.ones_like(far), rtol=1e-5, atol=0)


@pytest.mark.parametrize("value", [0.0, 2.0])
def test_equal_eigenvalues_are_one_node(value: float) -> None:
    found = nodes(torch.full((5,), value, dtype=torch.float64), 1e-3)
    assert found.values.tolist() == [value] and found.starts == [0, 5] and found.lower.tolist() == [1.0] * 5


def kinds() -> dict[str, Factor]:
    """Rotated factors of 7 outputs and 9 inputs, three examples, two cotangents."""
    g = normal(3, 2, 1, 7, 4)
    index = torch.tensor([[0, 2, 2], [1, 1, 5], [3, 0, 8]])
    return {
        "linear": Linear("w", None, g, normal(3, 1, 9, 4)),
        "at one position": Linear("w", None, g[..., :1], normal(3, 1, 9, 1)),
        "rows": Explicit("w", None, normal(3, 2, 63)),
        "embedding": Embedding("e", None, normal(3, 2, 3, 7), (9, 7), index, padding=5),
    }


@pytest.mark.parametrize("bytes_at_once", [2**27, 8 * 13 * 9 * 2])
@pytest.mark.parametrize("name", kinds())
def test_each_prior_as_alone(name: str, bytes_at_once: int) -> None:
    """As many variances are made at a time as may be."""
    factor = kinds()[name]
    several = replace(spectra(7, 9), budget=bytes_at_once)
    found = factor.covariances_under(several)
    exact = factor.covariances(factor.rotated_order(all_variances(several)))
    torch.testing.assert_close(found, exact, rtol=SPACING**2 / 8 if name == "linear" else 1e-12, atol=1e-12)


def all_variances(several: ShiftedSpectra) -> Tensor:
    """Those of all weights under every prior, those of each output together."""
    return several.variances(slice(None)).flatten(1)


@pytest.mark.parametrize("bytes_at_once", [2**25, 1])
def test_products_of_positions_are_those_of_the_weights(bytes_at_once: int) -> None:
    several = spectra(40, 50)
    factor = Linear("w", None, normal(3, 2, 1, 40, 4), normal(3, 1, 50, 4))
    found, separate = several.covariances(factor.g[:, :, 0], factor.a[:, 0], bytes_at_once)
    exact = factor.covariances(all_variances(several))
    error = (exact - found).diagonal(dim1=-2, dim2=-1) / exact.diagonal(dim1=-2, dim2=-1)
    assert float(error.min()) > -1e-3 and float(error.max()) < SPACING**2 / 8
    assert float((exact - found).norm() / exact.norm()) < SPACING**2 / 16
    torch.testing.assert_close(found, found.mT)
    each = [replace(factor, g=factor.g[..., s : s + 1], a=factor.a[..., s : s + 1]) for s in range(4)]
    alone = torch.stack([one.covariances(all_variances(several)) for one in each]).sum(0).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(separate, alone, rtol=SPACING**2 / 8, atol=0)


def test_segments_have_every_eigenvalue_once_between_ends_that_are_near() -> None:
    values = torch.logspace(-9, 2, 3000, dtype=torch.float64)[torch.randperm(3000)]
    values[:300] = 0.0
    found = segments(values, 1e-7)
    shares = found.parts.sum(1)
    whole = torch.zeros(3000, dtype=torch.float64).index_add_(0, found.order.flatten(), shares.flatten())
    torch.testing.assert_close(whole, torch.ones_like(values))
    least, largest = found.values.unbind(1)
    none = largest == 0.0
    assert bool((largest[~none] < math.exp(SPACING / 2) * least[~none] * (1 + 1e-12)).all())
    assert int(shares[none].sum()) == int((values <= 1e-7).sum()) and found.order.shape[1] == SEGMENT
    counted = values > 1e-7
    for shift in torch.logspace(-12, 8, 41, dtype=torch.float64):
        inverse = (found.parts / (found.values[..., None] + shift)).sum(1).flatten()
        each = torch.zeros(3000, dtype=torch.float64).index_add_(0, found.order.flatten(), inverse)
        error = (each * (values + shift) - 1)[counted]
        assert float(error.min()) > -(SPACING**2) / 64 and float(error.max()) < 1e-12


def test_a_large_layer_of_many_positions_is_contracted_by_segments() -> None:
    several = spectra(180, 190)
    factor = Linear("w", None, normal(3, 2, 1, 180, 40), normal(3, 1, 190, 40))
    assert several.by_segments(2) and several.cost(2, 40) > several.cost_by_weights(2, 40)
    found = factor.covariances_under(several)
    exact = factor.covariances(all_variances(several))
    error = (exact - found).diagonal(dim1=-2, dim2=-1) / exact.diagonal(dim1=-2, dim2=-1)
    assert float(error.min()) > -1e-3 and 0.0 < float(error.max()) < SPACING**2 / 32
    assert float((exact - found).norm() / exact.norm()) < SPACING**2 / 64


def test_a_large_layer_of_one_position_writes_no_variances() -> None:
    several = replace(spectra(300, 400), budget=0)
    factor = Linear("w", None, normal(3, 2, 1, 300, 1), normal(3, 1, 400, 1))
    assert several.cost(2, 1) < several.cost_by_weights(2, 1)
    found = factor.covariances_under(several)
    exact = factor.covariances(all_variances(several))
    error = (exact - found).diagonal(dim1=-2, dim2=-1) / exact.diagonal(dim1=-2, dim2=-1)
    assert 0.0 < float(error.max()) < SPACING**2 / 8 and float(error.min()) > -1e-3
    assert float((exact - found).norm() / exact.norm()) < SPACING**2 / 16


def test_positions_that_all_but_cancel_keep_their_digits() -> None:
    """Of two inputs of which the outputs are subtracted, the second example is nearly the same twice."""
    several = replace(spectra(80, 90), like=torch.zeros(()))
    g = normal(3, 2, 1, 80, 1).float() * torch.tensor([1.0, -1.0])
    a = normal(3, 1, 90, 2).float()
    a[1, ..., 1] = a[1, ..., 0] + 1e-3 * a[1, ..., 1]
    factor = Linear("w", None, g, a)
    assert several.cost(2, 2) < several.cost_by_weights(2, 2)
    exact = factor.widened().covariances(all_variances(several).double()).diagonal(dim1=-2, dim2=-1)
    found = factor.covariances_under(several).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(found[:, 1].double(), exact[:, 1], rtol=1e-3, atol=0)
    torch.testing.assert_close(found.double(), exact, rtol=SPACING**2 / 8, atol=0)


def test_what_takes_fewer_multiplications_is_done() -> None:
    """Few positions of a large layer by their products, many of a small one by its weights."""
    large = spectra(500, 600)
    assert large.cost(10, 4) < large.cost_by_weights(10, 4)
    small = spectra(8, 9)
    assert small.cost(10, 200) > small.cost_by_weights(10, 200)
