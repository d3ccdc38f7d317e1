"""The low-rank structure: exact pairs, an honest bound on what is left out."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.ground.errors import ConfigError, NumericalError, UnsupportedError
from lapwing.linalg import LowRank
from lapwing.posteriors import WeightPosterior
from lapwing.structures.low_rank import Method, left_out
from tests.posterior_cases import Linearised, normal, problem, refused, seeded


def fitted(structure: lw.LowRank, prior: float = 0.7) -> tuple[WeightPosterior, Linearised]:
    case = problem("images")
    posterior = case.fit(lw.Laplace(case.likelihood, prior=lw.Isotropic(prior), structure=structure))
    assert isinstance(posterior, WeightPosterior)
    return posterior, Linearised(case, posterior.network)


@pytest.mark.parametrize("method", ["lanczos", "randomised", "nystrom"])
def test_keeps_the_top_eigenpairs(method: Method) -> None:
    posterior, dense = fitted(lw.LowRank(6, method=method))
    values, vectors = torch.linalg.eigh(dense.ggn)
    best = (vectors[:, -6:] * values[-6:]) @ vectors[:, -6:].mT
    assert isinstance(posterior.curvature.operator, LowRank)
    tolerance = 1e-8 if method == "lanczos" else 0.05 * float(values[-1])
    assert float((posterior.curvature.operator.dense() - best).abs().max()) < tolerance


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


@pytest.mark.parametrize("tolerance", [0.3, 0.05])
def test_keeps_its_promise_under_priors_that_differ(tolerance: float) -> None:
    case = problem("images")
    prior = lw.DiagonalPrior(torch.logspace(-1, 4, fitted(lw.LowRank(2))[0].network.size, dtype=torch.float64))
    low = case.fit(lw.Laplace(case.likelihood, structure=lw.LowRank(500, tolerance=tolerance), prior=prior))
    full = case.fit(lw.Laplace(case.likelihood, structure=lw.Full(view="weights"), prior=prior))
    assert (1 - tolerance) * float(full.effective_dimension()) <= float(low.effective_dimension())


def test_what_is_left_out_is_a_bound_for_every_rank() -> None:
    factor = torch.randn(12, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    prior = torch.logspace(-1, 1, 12, dtype=torch.float64)
    g = factor @ factor.mT
    gamma = float(torch.linalg.solve(g + torch.diag(prior), g).trace())
    found = left_out(factor, float((g.diagonal() / prior).sum()), prior)
    for r in range(1, 8):
        part = factor[:, :r] @ factor[:, :r].mT
        kept = float(torch.linalg.solve(part + torch.diag(prior), part).trace())
        rest = float(((g - part).diagonal() / prior).sum())
        assert float(found[r - 1]) == pytest.approx(rest / (kept + rest), abs=1e-12)
        assert 1 - kept / gamma <= float(found[r - 1]) + 1e-12
    assert left_out(torch.zeros(3, 2).double(), 0.0, torch.ones(3).double()).tolist() == [0.0, 0.0]


def test_a_weaker_tolerance_keeps_fewer_pairs() -> None:
    held = [fitted(lw.LowRank(1000, tolerance=t))[0].curvature.operator for t in (0.5, 0.1, 0.001)]
    ranks = [operator.factor.shape[1] for operator in held if isinstance(operator, LowRank)]
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
        with refused(UnsupportedError, "generalised Gauss-Newton"):
            case.fit(recipe)


def test_bad_options() -> None:
    with refused(ConfigError, "rank of at least 1"):
        lw.LowRank(0)
    with refused(ConfigError, "between 0 and 1"):
        lw.LowRank(10, tolerance=1.5)


def too_precise(structure: lw.LowRank | lw.Full) -> lw.Posterior:
    """A fit where the data say 10³⁴ times as much about the mean as about the logarithm of its variance."""
    model = seeded(lambda: nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2)))
    last = model[2]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight[1] *= 0.1
        last.bias[1] = -80.0
    data = (normal(30, 2), normal(30, 1, seed=1))
    return lw.Laplace(lw.HeteroscedasticGaussian(), structure=structure).fit(model, data)


@pytest.mark.parametrize(
    "structure",
    [
        lw.Full(view="weights"),
        lw.LowRank(),
        lw.LowRank(method="lanczos"),
        lw.LowRank(method="nystrom"),
        lw.LowRank(tolerance=0.1),
    ],
    ids=repr,
)
def test_directions_that_are_rounding_alone_beside_the_prior_are_refused(structure: lw.LowRank | lw.Full) -> None:
    with refused(NumericalError, "less than 1000 times the prior precision"):
        too_precise(structure)


def test_directions_far_above_the_rounding_are_not_refused() -> None:
    posterior = too_precise(lw.LowRank(3))
    assert isinstance(posterior, WeightPosterior)
    values = posterior.curvature.operator.eigenvalues().sort(descending=True).values
    assert float(values[2]) > 1e-16 * float(values[0]) > 1e3 * float(posterior.prior_diagonal.max())


def test_of_the_exact_hessian_the_positive_part_is_held() -> None:
    case = problem("categorical")
    recipe = lw.Laplace(case.likelihood, curvature=lw.Hessian(), structure=lw.LowRank(31))
    posterior = case.fit(recipe)
    damped = case.fit(replace(recipe, curvature=lw.Hessian(damping=100.0), structure=lw.Full(view="weights")))
    assert isinstance(posterior, WeightPosterior) and isinstance(damped, WeightPosterior)
    values, vectors = torch.linalg.eigh(damped.curvature.operator.dense() - 100.0 * torch.eye(31).double())
    assert float(values[0]) < -1e-3
    positive = (vectors * values.clamp_min(0.0)) @ vectors.mT
    torch.testing.assert_close(posterior.curvature.operator.dense(), positive, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        posterior.precision_operator.dense(), posterior.curvature.operator.dense() + torch.eye(31).double()
    )


def test_the_exact_hessian_has_no_tolerance_and_no_damping() -> None:
    case = problem("categorical")
    for structure, curvature in (
        (lw.LowRank(5, tolerance=0.1), lw.Hessian()),
        (lw.LowRank(5), lw.Hessian(damping=1.0)),
    ):
        with refused(ConfigError, "a rank alone for the exact Hessian, undamped"):
            case.fit(lw.Laplace(case.likelihood, curvature=curvature, structure=structure))
