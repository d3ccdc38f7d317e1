"""A Kronecker product a layer, and what it refuses."""

from __future__ import annotations

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import ConfigError, UnsupportedError
from lapwing.linalg import BlockDiagonal, Dense, Kronecker
from lapwing.posteriors import WeightPosterior
from lapwing.structures import Structure
from tests.posterior_cases import problem, refused
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
