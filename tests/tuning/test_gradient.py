"""Both ways up reach the same top, where MacKay's conditions hold, from wherever they start."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import ConvergenceWarning
from lapwing.linear.evidence import LogEvidence
from lapwing.linear.log_det_ratio import Spectrum
from lapwing.tuning.gradient import climb, newton_on_conditions, quasi_newton
from lapwing.tuning.hyperparameters import Hyperparameters


def made(groups: int, observations: float, generator: torch.Generator) -> LogEvidence:
    """An evidence with a wide spectrum over ``groups`` groups; Gaussian noise where there are observations."""
    eigenvalues = 10 ** (6 * torch.rand(40, generator=generator, dtype=torch.float64) - 3)
    spectrum = Spectrum(eigenvalues, torch.arange(40) % groups)
    norms = 0.5 + torch.rand(groups, generator=generator, dtype=torch.float64)
    sizes = torch.full((groups,), 60.0 / groups, dtype=torch.float64)
    return LogEvidence(
        spectrum, norms, sizes, nll=50.0, misfit=30.0 if observations else 0.0, observations=observations
    )


def point(precisions: Tensor, scale: float) -> Hyperparameters:
    """Where to start."""
    return Hyperparameters(precisions.double(), torch.tensor(scale, dtype=torch.float64))


@pytest.mark.parametrize("start", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("observations", [0.0, 200.0])
@pytest.mark.parametrize("groups", [1, 3])
def test_newton_and_quasi_newton_meet(
    groups: int, observations: float, start: float, generator: torch.Generator
) -> None:
    evidence = made(groups, observations, generator)
    with_noise = observations > 0
    first = point(torch.full((groups,), start), 1.0)
    assert isinstance(evidence.complexity, Spectrum)
    top = list(newton_on_conditions(evidence, evidence.complexity, first, with_noise, 50))
    other = list(quasi_newton(evidence, first, with_noise, 500))[-1]
    assert len(top) <= 25
    there = top[-1].hyperparameters
    torch.testing.assert_close(there.values, other.hyperparameters.values, rtol=1e-4, atol=0)
    assert top[-1].log_marginal >= other.log_marginal - 1e-9
    gamma = evidence.effective_dimensions(there.precisions, there.scale)
    torch.testing.assert_close(gamma, there.precisions * evidence.square_norms, rtol=1e-8, atol=0)
    assert top[-1].effective_dimension == pytest.approx(float(gamma.sum()), rel=1e-10)
    if with_noise:
        assert float(there.scale * evidence.misfit) == pytest.approx(observations - float(gamma.sum()), rel=1e-8)


@pytest.mark.parametrize("observations", [200.0, 20.0])
def test_a_step_of_newton_is_one_on_the_conditions(observations: float, generator: torch.Generator) -> None:
    """By their dense Jacobian, with fewer and with more observations than directions that the data determined."""
    evidence = made(3, observations, generator)
    spectrum, start = evidence.complexity, torch.tensor([0.3, 1.0, 2.0, 1.5], dtype=torch.float64)
    assert isinstance(spectrum, Spectrum)

    def conditions(logs: Tensor) -> Tensor:
        alpha, s = logs[:3].exp(), logs[3].exp()
        determined = s * spectrum.eigenvalues / (s * spectrum.eigenvalues + alpha[spectrum.group])
        gamma = torch.zeros_like(alpha).index_add(0, spectrum.group, determined)
        misfit, free = s * evidence.misfit, observations - gamma.sum()
        noise = (free / misfit).log() if observations > 100 else (observations / (misfit + gamma.sum())).log()
        return torch.cat([(gamma / (alpha * evidence.square_norms)).log(), noise.view(1)])

    with pytest.warns(ConvergenceWarning, match="after 1 steps"):
        first, then = newton_on_conditions(evidence, spectrum, Hyperparameters(start[:3], start[3]), True, 1)
    assert (first.effective_dimension > observations) == (observations < 100)
    jacobian = torch.autograd.functional.jacobian(conditions, start.log())
    assert isinstance(jacobian, Tensor)
    moved = then.hyperparameters.values.log() - start.log()
    torch.testing.assert_close(moved, -torch.linalg.solve(jacobian, conditions(start.log())))


@pytest.mark.parametrize("seed", [26, 318, 882])
def test_newton_ends_at_the_best_point_it_passed(seed: int) -> None:
    """Spectra on the last two of which whole steps go to and fro for ever."""
    generator = torch.Generator().manual_seed(seed)

    def random(size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    groups = int(torch.randint(1, 6, (1,), generator=generator))
    size = int(torch.randint(groups, 60, (1,), generator=generator))
    spread = float(torch.rand(1, generator=generator)) * 4
    eigenvalues = 10 ** (spread * random(size)) * (torch.rand(size, generator=generator) > 0.2)
    spectrum = Spectrum(eigenvalues, torch.arange(size) % groups)
    norms, sizes = 10 ** (2 * random(groups)), torch.bincount(spectrum.group, minlength=groups).double()
    observations = float(torch.randint(5, 300, (1,), generator=generator))
    misfit = float(10 ** torch.randn(1, generator=generator)) * observations
    evidence = LogEvidence(spectrum, norms, sizes, 50.0, misfit, observations)
    start = point(torch.ones(groups), 1.0)
    points = list(newton_on_conditions(evidence, spectrum, start, True, 100))
    values = [each.log_marginal for each in points]
    top = max(each.log_marginal for each in quasi_newton(evidence, start, True, 500))
    assert values[-1] >= max(*values, top) - 1e-7
    assert len(values) < 50


def test_points_of_quasi_newton_only_climb(generator: torch.Generator) -> None:
    evidence = made(2, 200.0, generator)
    points = list(quasi_newton(evidence, point(torch.ones(2), 1.0), True, 500))
    values = [each.log_marginal for each in points]
    assert values == sorted(values) and len(values) > 3
    last = points[-1]
    there = last.hyperparameters
    gamma = evidence.effective_dimensions(there.precisions, there.scale)
    assert last.effective_dimension == pytest.approx(float(gamma.sum()), rel=1e-8)


def test_the_closed_form_is_for_spectra_at_the_trained_weights(generator: torch.Generator) -> None:
    evidence = made(1, 0.0, generator)
    one = point(torch.ones(1), 1.0)
    with pytest.warns(ConvergenceWarning, match="after 2 steps"):
        assert len(list(climb(evidence, one, with_noise=False, steps=2))) == 3
    with pytest.warns(ConvergenceWarning, match="after 1 steps"):
        list(quasi_newton(evidence, one, False, 1))
    twice = replace(evidence, complexity=Spectrum(2 * evidence.complexity.eigenvalues, evidence.complexity.group))  # type: ignore[union-attr]
    top = list(climb(twice, one, with_noise=False, steps=50))[-1]
    assert top.log_marginal > float(twice.log_marginal(one.precisions, one.scale))
