"""A Kronecker product a layer, and what it refuses."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import ConfigError, UnsupportedError
from lapwing.linalg import BlockDiagonal, Dense, Kronecker
from lapwing.posteriors import WeightPosterior
from lapwing.structures import Structure
from tests.posterior_cases import normal, problem, refused
from tests.structures.cases import fit


class TestKFAC:
    def test_has_a_block_a_layer_and_exact_ones_for_norms(self) -> None:
        posterior = fit(problem("images"), lw.KFAC())
        assert isinstance(posterior, WeightPosterior) and isinstance(posterior.curvature.operator, BlockDiagonal)
        assert [type(block) for block in posterior.curvature.operator.blocks] == [Kronecker, Dense, Kronecker]
        assert posterior.curvature.partition[1] == ("1.weight", "1.bias")

    def test_refuses_single_weights(self) -> None:
        with refused(ConfigError, "whole parameters"):
            fit(problem("categorical"), lw.KFAC(), weights=lw.Subnetwork(5))

    @pytest.mark.parametrize(
        ("structure", "prior"),
        [
            (lw.KFAC(), lw.DiagonalPrior(torch.linspace(1, 2, 31, dtype=torch.float64))),
            (lw.KFAC(bias="separate"), lw.DiagonalPrior(1.0)),
            (lw.KFAC(), lw.Layerwise((1.0, 2.0), parts=(("0.weight", "3.weight"),))),
        ],
    )
    def test_refuses_several_precisions_in_a_layer_at_the_fit(self, structure: Structure, prior: object) -> None:
        case = problem("categorical")
        with refused(UnsupportedError, "one prior precision for all of 0.weight"):
            fit(case, structure, prior=prior)
        apart = lw.KFAC(bias="separate")
        parts = lw.Layerwise((1.0, 2.0), parts=(("0.weight", "3.weight"),))
        assert fit(case, apart, prior=parts).effective_dimension() > 0

    def test_shares_the_prior_out_among_the_factors_on_request(self) -> None:
        case = problem("images")
        exact = fit(case, lw.KFAC(), prior=lw.Isotropic(0.3))
        shared = fit(case, lw.KFAC(damping="factored"), prior=lw.Isotropic(0.3))
        assert isinstance(exact, WeightPosterior) and isinstance(shared, WeightPosterior)
        assert isinstance(exact.curvature.operator, BlockDiagonal)
        found = shared.precision_operator.dense()
        for block, index in exact.curvature.operator.indexed_blocks:
            size = block.shape[0]
            expected = block.dense() + 0.3 * torch.eye(size, dtype=torch.float64)
            if isinstance(block, Kronecker):
                left, right = (basis.matrix.view(basis.shape[-2:]) for basis in block.bases)
                left = block.scale * left
                balance = (left.diagonal().mean() / right.diagonal().mean()).sqrt()
                left = left + balance * 0.3**0.5 * torch.eye(len(left), dtype=torch.float64)
                right = right + 0.3**0.5 / balance * torch.eye(len(right), dtype=torch.float64)
                expected = torch.kron(left, right)
            torch.testing.assert_close(found[index[:, None], index], expected)
        volume = float(torch.logdet(found) - torch.logdet(exact.precision_operator.dense()))
        assert volume > 0
        assert exact.log_marginal() - shared.log_marginal() == pytest.approx(0.5 * volume, rel=1e-9)
        rows = normal(2, 3, shared.network.size, seed=4)
        torch.testing.assert_close(shared.functional_variance(rows), rows @ torch.linalg.inv(found) @ rows.mT)
        tuned = lw.tune(shared, lw.EvidenceGradient())
        heights = [tuned.with_prior_factor(factor).log_marginal() for factor in (0.9, 1.0, 1.1)]
        assert max(heights) == heights[1]
