"""Kronecker products with their eigenvalues put right, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import ConfigError, UnsupportedError
from lapwing.linalg import BlockDiagonal, Kronecker
from lapwing.posteriors import WeightPosterior
from tests.checker import unchecked
from tests.posterior_cases import problem, refused
from tests.structures.cases import fit


class TestEKFAC:
    @pytest.mark.parametrize("weights", [lw.All(), lw.LastLayer()])
    def test_has_the_trace_of_the_whole_curvature(self, weights: Any) -> None:
        case = problem("categorical")
        full = fit(case, lw.Full(view="weights"), weights=weights)
        posterior = fit(case, lw.EKFAC(), weights=weights)
        assert isinstance(posterior, WeightPosterior) and isinstance(full, WeightPosterior)
        torch.testing.assert_close(posterior.curvature.operator.trace(), full.curvature.operator.trace())

    def test_puts_right_what_it_drew(self) -> None:
        case = problem("categorical")
        generator = torch.Generator().manual_seed(3)
        recipe = lw.Laplace(case.likelihood, structure=lw.EKFAC(), curvature=lw.MCFisher(2))
        posterior = case.fit(recipe, generator=generator)
        generator = torch.Generator().manual_seed(3)
        full = case.fit(
            lw.Laplace(case.likelihood, structure=lw.Full(view="weights"), curvature=lw.MCFisher(2)),
            generator=generator,
        )
        assert isinstance(posterior, WeightPosterior) and isinstance(full, WeightPosterior)
        torch.testing.assert_close(posterior.curvature.operator.trace(), full.curvature.operator.trace())

    def test_is_carried_on(self) -> None:
        case = problem("images")
        first = case.fit(lw.Laplace(case.likelihood, structure=lw.EKFAC()))
        second = case.fit(lw.Laplace(case.likelihood, structure=lw.EKFAC(), prior=first.as_prior()))
        assert isinstance(first, WeightPosterior) and isinstance(second, WeightPosterior)
        operator = second.curvature.operator
        torch.testing.assert_close(operator.dense(), 2 * first.curvature.operator.dense())
        assert isinstance(operator, BlockDiagonal)
        assert any(isinstance(block, Kronecker) and block.corrected is not None for block in operator.blocks)

    def test_refuses_what_it_cannot_hold(self) -> None:
        case = problem("categorical")
        with refused(ConfigError, "whole parameters"):
            fit(case, lw.EKFAC(), weights=lw.Subnetwork(5))
        with refused(UnsupportedError, "one prior precision for all of 0.weight"):
            fit(case, lw.EKFAC(), prior=lw.DiagonalPrior(torch.linspace(1, 2, 31, dtype=torch.float64)))
        for option in ("sharing", "bias"):
            with unchecked(), refused(ConfigError, option):
                lw.EKFAC(**{option: "other"})
