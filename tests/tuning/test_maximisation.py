"""Each step goes where its bound is largest, and keeps the maximum of the evidence where it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import UnsupportedError
from lapwing.jacobian.tangent import Mode
from lapwing.linear.bounds import DecoupledBound
from lapwing.linear.evidence import Evidence, Spectrum
from lapwing.posteriors.dimension import Dimensions
from lapwing.tuning.maximisation import Expected, MStep, mackay_scale, maximised
from tests.posterior_cases import normal, refused

N = 50.0


def found(exact: bool = True, misfit: float = 40.0) -> Expected:
    """What expectation might say of two groups with many directions each."""
    eigenvalues = torch.logspace(-2, 3, 20).double()
    norms, sizes = torch.tensor([2.0, 0.5]).double(), torch.tensor([12.0, 11.0]).double()
    evidence = Evidence(Spectrum(eigenvalues, torch.arange(20) % 2), norms, sizes, 70.0, misfit, N)
    alpha, s = torch.tensor([3.0, 0.2]).double(), torch.tensor(0.7).double()
    mode = Mode(normal(23), 70.0, misfit, 0.0, 1, 1, "converged")
    dimensions = Dimensions.exact(evidence.effective_dimensions(alpha, s))
    return Expected(alpha, s, mode, norms, dimensions, sizes, N, evidence if exact else None)


def largest(value: Any, expected: Expected, noisy: bool) -> Tensor:
    """Where a bound is largest, by L-BFGS."""
    logs = torch.cat([expected.precisions, expected.scale.view(1)[: int(noisy)]]).log().requires_grad_()
    optimiser = torch.optim.LBFGS([logs], max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -value(logs[:2].exp(), logs[-1].exp() if noisy else expected.scale)
        loss.backward()
        return loss

    optimiser.step(closure)
    return logs.detach().exp()


@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("step", ["bound", "elbo"])
def test_a_step_goes_where_its_bound_is_largest(step: MStep, noisy: bool) -> None:
    expected = found()
    assert expected.evidence is not None
    decoupled = DecoupledBound(expected.evidence, expected.precisions, expected.scale)
    best = largest((expected.evidence if step == "bound" else decoupled).log_marginal, expected, noisy)
    alpha, s = maximised(expected, step, noisy)
    torch.testing.assert_close(alpha, best[:2], rtol=1e-5, atol=0)
    torch.testing.assert_close(s, best[-1] if noisy else expected.scale, rtol=1e-5, atol=0)


@pytest.mark.parametrize("step", ["mackay", "elbo", "bound"])
@pytest.mark.parametrize("misfit", [40.0, 4.0])
def test_the_maximum_of_the_bound_is_a_fixed_point_of_every_step(step: MStep, misfit: float) -> None:
    """Also where the data determined more directions than half their number."""
    start = found(misfit=misfit)
    alpha, s = maximised(start, "bound", True)
    assert start.evidence is not None
    dimensions = Dimensions.exact(start.evidence.effective_dimensions(alpha, s))
    there = Expected(alpha, s, start.mode, start.norms, dimensions, start.sizes, N, start.evidence)
    for one, other in zip(maximised(there, step, True), (alpha, s), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


def test_mackay_divides_directions_by_norms() -> None:
    expected = found()
    alpha, s = maximised(expected, "mackay", True)
    gamma = expected.dimensions.groups
    torch.testing.assert_close(alpha, gamma / torch.tensor([2.0, 0.5]).double())
    assert float(s) == pytest.approx((N - float(gamma.sum())) / 40)
    assert torch.equal(maximised(expected, "mackay", False)[1], expected.scale)


def test_the_noise_stays_positive_where_more_was_determined_than_observed() -> None:
    one = torch.tensor(1.0).double()
    for gamma in (10.0, 49.9, 80.0):
        assert float(mackay_scale(one, gamma * one.view(1), one, N)) > 0
    few, many = (float(mackay_scale(2 * one, x * one.view(1), 3 * one, N)) for x in (25.0, 26.0))
    assert (few, many) == (pytest.approx(25 / 3), pytest.approx(50 / (3 + 13)))


def test_weights_of_no_length_have_the_largest_precision_considered() -> None:
    nowhere = replace(found(), norms=torch.zeros(2).double())
    assert maximised(nowhere, "mackay", True)[0].tolist() == [1e12, 1e12]


def test_the_bound_needs_an_exact_evidence() -> None:
    assert found(exact=False).log_marginal is None
    with refused(UnsupportedError, expected="step='bound'", got="draws", hint="step='mackay'"):
        maximised(found(exact=False), "bound", True)


def test_the_error_of_the_noise_is_that_of_what_is_left_of_the_observations() -> None:
    """``N - γ``, or γ where that is more: the step of expectation maximisation is taken there."""
    expected = found()
    gamma = expected.gamma
    for observations, free in ((N, max(N - gamma, gamma)), (1.2 * gamma, gamma)):
        dimensions = Dimensions(expected.dimensions.groups, torch.tensor([0.1, 0.2]).double(), gamma, 0.3)
        errors = replace(expected, dimensions=dimensions, observations=observations).errors
        assert float(errors[-1]) == pytest.approx(0.3 / free)
        torch.testing.assert_close(errors[:2], torch.tensor([0.1, 0.2]).double() / dimensions.groups)
