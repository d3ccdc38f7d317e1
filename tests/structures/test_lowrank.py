"""The low-rank structure: exact pairs, an honest bound on what is left out."""

from __future__ import annotations

import logging

import pytest
import torch

import lapwing as lw
from lapwing.errors import ConfigError, UnsupportedError
from lapwing.linalg import LowRank
from lapwing.posteriors import WeightPosterior
from tests.posterior_cases import Linearised, problem, refused


def fitted(structure: lw.LowRank, prior: float = 0.7) -> tuple[WeightPosterior, Linearised]:
    case = problem("images")
    posterior = case.fit(lw.Laplace(case.likelihood, prior=lw.Isotropic(prior), structure=structure))
    assert isinstance(posterior, WeightPosterior)
    return posterior, Linearised(case, posterior.network)


@pytest.mark.parametrize("method", ["lanczos", "randomised"])
def test_keeps_the_top_eigenpairs(method: lw.structures.lowrank.Method) -> None:
    posterior, dense = fitted(lw.LowRank(6, method=method))
    values, vectors = torch.linalg.eigh(dense.ggn)
    best = (vectors[:, -6:] * values[-6:]) @ vectors[:, -6:].mT
    assert isinstance(posterior.held.operator, LowRank)
    tolerance = 1e-8 if method == "lanczos" else 0.05 * float(values[-1])
    assert float((posterior.held.operator.dense() - best).abs().max()) < tolerance


def test_the_prior_is_exact_in_the_complement() -> None:
    posterior, _ = fitted(lw.LowRank(3))
    values = torch.linalg.eigvalsh(posterior.precision.operator.dense())
    assert torch.allclose(values[:-3], torch.tensor(0.7).double(), atol=1e-10)
    assert (values[-3:] > 0.71).all()


@pytest.mark.parametrize("tolerance", [0.5, 0.1, 0.01])
def test_leaves_out_no_more_than_the_tolerance(tolerance: float) -> None:
    posterior, dense = fitted(lw.LowRank(1000, tolerance=tolerance, method="lanczos"))
    values = torch.linalg.eigvalsh(dense.ggn).clamp_min(0)
    gamma = float((values / (values + 0.7)).sum())
    assert gamma * (1 - tolerance) <= posterior.effective_dimension() <= gamma + 1e-9


def test_a_weaker_tolerance_keeps_fewer_pairs() -> None:
    ranks = [fitted(lw.LowRank(1000, tolerance=t))[0].held.operator.factor.shape[1] for t in (0.5, 0.1, 0.001)]
    assert ranks[0] < ranks[1] < ranks[2]


def test_says_when_the_rank_is_too_small_for_the_tolerance(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="lapwing"):
        fitted(lw.LowRank(2, tolerance=0.001))
    (record,) = [r for r in caplog.records if "eigenpairs" in r.message]
    assert record.levelno == logging.WARNING and "kept 2 eigenpairs" in record.message


def test_only_the_ggn_has_products() -> None:
    case = problem("images")
    for structure in (lw.LowRank(2), lw.MatrixFree()):
        recipe = lw.Laplace(case.likelihood, structure=structure, curvature=lw.MCFisher())
        with refused(UnsupportedError, expected="generalised Gauss-Newton", got="MCFisher", hint="GGN()"):
            case.fit(recipe)


def test_bad_options() -> None:
    with refused(ConfigError, expected="positive rank", got="rank=0", hint="LowRank(100)"):
        lw.LowRank(0)
    with refused(ConfigError, expected="between 0 and 1", got="tolerance=1.5", hint="tolerance=0.05"):
        lw.LowRank(10, tolerance=1.5)
