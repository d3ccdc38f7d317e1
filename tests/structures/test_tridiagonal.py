"""KFAC with neighbouring layers tied, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lapwing as lw
from lapwing.ground.errors import TooLargeError, UnsupportedError
from lapwing.linalg import BlockDiagonal, KroneckerChain
from lapwing.posteriors import WeightPosterior
from lapwing.structures import TridiagonalKFAC
from tests.posterior_cases import problem, refused
from tests.structures.cases import fit


class TestTridiagonalKFAC:
    def test_ties_linear_layers_and_leaves_convolutions_alone(self) -> None:
        mlp, images = fit(problem("categorical"), TridiagonalKFAC()), fit(problem("images"), TridiagonalKFAC())
        assert isinstance(mlp, WeightPosterior) and isinstance(images, WeightPosterior)
        assert isinstance(mlp.curvature.operator, KroneckerChain)
        assert isinstance(images.curvature.operator, BlockDiagonal)
        assert images.log_marginal() == pytest.approx(fit(problem("images"), lw.KFAC()).log_marginal(), rel=1e-12)

    def test_can_be_tuned(self) -> None:
        tuned = lw.tune(fit(problem("gaussian"), TridiagonalKFAC()), lw.EvidenceGradient(noise=False))
        heights = [tuned.with_prior_factor(factor).log_marginal() for factor in (0.9, 1.0, 1.1)]
        assert max(heights) == heights[1]

    def test_goes_through_a_file(self, tmp_path: Path) -> None:
        case = problem("categorical")
        posterior = fit(case, TridiagonalKFAC(), prior=lw.Layerwise((0.4, 1.5)))
        lw.save(posterior, tmp_path / "chain.safetensors")
        there = lw.load(tmp_path / "chain.safetensors", case.model)
        assert there.log_marginal() == pytest.approx(posterior.log_marginal(), rel=1e-12)
        found, known = there.predict(case.new), posterior.predict(case.new)
        torch.testing.assert_close(found.probs, known.probs)  # type: ignore[attr-defined]

    def test_refuses_blocks_that_do_not_fit_and_earlier_data(self) -> None:
        case = problem("categorical")
        with refused(TooLargeError, "layers of up to 16 weights, whose blocks need"):
            fit(case, TridiagonalKFAC(max_bytes=10_000))
        posterior = fit(case, TridiagonalKFAC())
        with refused(UnsupportedError, "a prior without earlier data for TridiagonalKFAC"):
            fit(case, TridiagonalKFAC(), prior=posterior.as_prior())
