"""Both ways up reach the same top, where MacKay's conditions hold, from wherever they start."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lapwing.ascent import climb, newton, quasi_newton
from lapwing.evidence import Evidence, Spectrum


def made(groups: int, observations: float, generator: torch.Generator) -> Evidence:
    """An evidence with a wide spectrum over ``groups`` groups; Gaussian noise where there are observations."""
    eigenvalues = 10 ** (6 * torch.rand(40, generator=generator, dtype=torch.float64) - 3)
    spectrum = Spectrum(eigenvalues, torch.arange(40) % groups)
    norms = 0.5 + torch.rand(groups, generator=generator, dtype=torch.float64)
    sizes = torch.full((groups,), 60.0 / groups, dtype=torch.float64)
    return Evidence(spectrum, norms, sizes, nll=50.0, misfit=30.0 if observations else 0.0, observations=observations)


@pytest.mark.parametrize("start", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("observations", [0.0, 200.0])
@pytest.mark.parametrize("groups", [1, 3])
def test_newton_and_quasi_newton_meet(
    groups: int, observations: float, start: float, generator: torch.Generator
) -> None:
    evidence = made(groups, observations, generator)
    precisions = torch.full((groups,), start, dtype=torch.float64)
    scale, noisy = torch.ones((), dtype=torch.float64), observations > 0
    assert isinstance(evidence.complexity, Spectrum)
    top = list(newton(evidence, evidence.complexity, precisions, scale, noisy, 50))
    other = list(quasi_newton(evidence, precisions, scale, noisy, 500))[-1]
    assert len(top) <= 25
    torch.testing.assert_close(top[-1].precisions, other.precisions, rtol=1e-4, atol=0)
    torch.testing.assert_close(top[-1].scale, other.scale, rtol=1e-4, atol=0)
    assert top[-1].log_marginal >= other.log_marginal - 1e-9
    gamma = evidence.effective_dimensions(top[-1].precisions, top[-1].scale)
    torch.testing.assert_close(gamma, top[-1].precisions * evidence.square_norms, rtol=1e-8, atol=0)
    assert top[-1].effective_dimension == pytest.approx(float(gamma.sum()), rel=1e-10)
    if noisy:
        assert float(top[-1].scale * evidence.misfit) == pytest.approx(observations - float(gamma.sum()), rel=1e-8)


def test_points_of_quasi_newton_only_climb(generator: torch.Generator) -> None:
    evidence = made(2, 200.0, generator)
    points = list(quasi_newton(evidence, torch.ones(2, dtype=torch.float64), torch.tensor(1.0).double(), True, 500))
    values = [point.log_marginal for point in points]
    assert values == sorted(values) and len(values) > 3
    last = points[-1]
    assert last.effective_dimension == pytest.approx(
        float(evidence.effective_dimensions(last.precisions, last.scale).sum()), rel=1e-8
    )


def test_the_closed_form_is_for_spectra_at_the_trained_weights(generator: torch.Generator) -> None:
    evidence = made(1, 0.0, generator)
    one, scale = torch.ones(1, dtype=torch.float64), torch.ones((), dtype=torch.float64)
    assert len(list(climb(evidence, one, scale, noisy=False, steps=2))) == 3
    twice = replace(evidence, complexity=Spectrum(2 * evidence.complexity.eigenvalues, evidence.complexity.group))  # type: ignore[union-attr]
    top = list(climb(twice, one, scale, noisy=False, steps=50))[-1]
    assert top.log_marginal > float(twice.log_marginal(one, scale))
