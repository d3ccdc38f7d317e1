from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.networks import seeded, weight_count
from lapwing.linear.tangent import Tangent
from studies.sampled import hessian
from studies.sampled.hessian import Search, changes
from studies.sampled.networks import BIASED, KINDS, Kind, cnn
from studies.sampled.setting import Images

SETTING = Setting(quick=True)
KIND = Kind(partial(cnn, (2, 2, 3)), epochs=30)


@pytest.fixture(scope="module")
def images() -> Images:
    return Images.drawn(KIND, 0, SETTING)


@pytest.fixture(scope="module")
def model(images: Images) -> nn.Module:
    return KIND.trained(images.train, 0)


@pytest.fixture(scope="module")
def search(model: nn.Module, images: Images) -> Search:
    return Search.of(model, images.train, biases=True)


def test_with_the_hessian_at_the_weights_the_precisions_are_those_that_tuning_finds(search: Search) -> None:
    at_weights = lw.tune(search.posterior, lw.EvidenceGradient())
    assert float(search.largest("weights", "weights").prior_precisions) == pytest.approx(
        float(at_weights.prior_precisions), rel=2e-3
    )
    at_mode = lw.tune(search.posterior, lw.EM(tolerance=1e-3, steps=50))
    assert float(search.largest("mode", "weights").prior_precisions) == pytest.approx(
        float(at_mode.prior_precisions), rel=2e-3
    )


def test_the_hessian_at_the_mode_is_that_of_the_outputs_of_the_tangent_model(
    model: nn.Module, images: Images, search: Search
) -> None:
    """Written out: ``Σ_i J_iᵀ (diag p_i - p_i p_iᵀ) J_i`` with the probabilities of ``h(w*, x_i)``."""
    expected = search.expectation.expect(search.expectation.first())
    network = search.posterior.network
    values = {name: value.detach() for name, value in model.named_parameters()}

    def outputs(chosen: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, values | chosen, (x,))

    x = images.train[0]
    chosen = {name: values[name] for name in network.names}
    parts = torch.func.jacrev(outputs)(chosen, x)
    rows = torch.cat([parts[name].flatten(2) for name in network.names], dim=2)
    moved = expected.mode.weights - network.weights
    p = (model(x).detach() + rows @ moved).softmax(-1)
    blocks = p.diag_embed() - p[:, :, None] * p[:, None, :]
    naive = torch.einsum("nci,ncb,nbj->ij", rows, blocks, rows)
    found = search.at_mode(expected).curvature.operator.dense()
    torch.testing.assert_close(found, naive, rtol=1e-8, atol=1e-8)
    assert float((found - search.posterior.curvature.operator.dense()).norm()) > 0.1 * float(naive.norm())


def test_the_precision_of_the_hessian_at_the_mode_is_a_fixed_point_of_its_own_steps(search: Search) -> None:
    found = search.largest("mode", "mode")
    assert found.curvature is not search.posterior.curvature
    a = float(found.prior_precisions)
    mode = Tangent(search.posterior.training).mode(lw.Isotropic(a), rtol=1e-8).weights
    values = torch.linalg.eigvalsh(found.curvature.operator.dense()).clamp_min(0)
    assert a == pytest.approx(float((values / (values + a)).sum() / mode.square().sum()), rel=1e-2)


def test_a_change_is_a_mean_over_the_other_two() -> None:
    """Each change multiplies the precision by a number of its own, and adds one to the NLL."""
    factors = {"evidence": 3.0, "hessian": 0.5, "biases": 1.1}
    rows = []
    for seed in range(2):
        for k in range(8):
            row: dict[str, Any] = {
                "part": "CNN",
                "seed": seed,
                "precision": 7.0 + seed,
                "nll": 0.4,
                "nll_by_precision": 0.3,
            }
            for bit, (name, places) in enumerate(hessian.FACTORS.items()):
                there = k >> bit & 1
                row[name] = places[there]
                row["precision"] *= factors[name] ** there
                row["nll"] += there * bit
                row["nll_by_precision"] -= there * bit * seed
            rows.append(row)
    found = {row["change"]: row for row in changes(rows)}
    for bit, (name, factor) in enumerate(factors.items()):
        assert found[name]["log_ratio"] == pytest.approx(torch.tensor(factor).log().item(), rel=1e-6)
        assert found[name]["nll"] == pytest.approx(bit, abs=1e-12)
        assert found[name]["nll_by_precision"] == pytest.approx(-bit / 2, abs=1e-12)
        assert found[name]["nll_by_precision_stderr"] == pytest.approx(bit / 2, abs=1e-12)


def test_networks_have_biases_in_their_convolutions() -> None:
    """Those of the ResNet are one a channel: of the stem 4, and of each block twice its channels, 8 and 12."""
    assert weight_count(seeded(BIASED.build, 0)) - weight_count(seeded(KINDS["ResNet"].build, 0)) == 4 + 8 + 12
    for kind in hessian.NETWORKS.values():
        model = seeded(kind.build, 0)
        of_convolutions = [part for part in model.modules() if isinstance(part, nn.Conv2d) and part.bias is not None]
        assert len(of_convolutions) >= 3
