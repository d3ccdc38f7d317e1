"""What the studies write out themselves, against the exact answers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.gp import GP, RBF, Tanimoto
from studies.gp.descents import Descent, Estimator, System
from studies.gp.line import SCALE, VARIANCE, _collapsed
from studies.gp.molecules import EACH, OWN, PARTS, generated
from tests.posterior_cases import normal


def system(generator: torch.Generator) -> System:
    x, noise = normal(200, 1), 0.1
    kernel = RBF(1.0)

    def features(source: torch.Generator) -> Tensor:
        return kernel.features(50, x, source)(x)

    new = normal(5, 1, seed=1)
    return System(kernel(x, x), noise, x.sin(), kernel(new, x), new.sin(), features)


@pytest.mark.parametrize("estimator", ["coordinates", "features", "partial"])
def test_gradients_are_right_on_average(estimator: Estimator, generator: torch.Generator) -> None:
    problem, at = system(generator), normal(200, 1, seed=2)
    descent, whole = Descent("", "", 1.0, estimator), Descent("", "", 1.0, "all")
    exact = whole.gradient(problem, at, generator)
    found = torch.stack([descent.gradient(problem, at, generator) for _ in range(2000)])
    error = found.std(0) / 2000**0.5
    assert float(((found.mean(0) - exact).abs() - 5 * error).max()) < 1e-12


@pytest.mark.parametrize("average", ["geometric", "arithmetic", "none"])
def test_descents_come_to_the_solution(average: str, generator: torch.Generator) -> None:
    problem = system(generator)
    exact = torch.linalg.solve(problem.matrix + problem.noise * torch.eye(200), problem.target)
    longest = 200 / float(torch.linalg.eigvalsh(problem.matrix)[-1])
    found = Descent("", "", longest, average=average).run(problem, 1000, generator)  # type: ignore[arg-type]
    errors = problem.errors(found, exact)
    assert errors["k2_norm"] < 0.01 and errors["rmse_to_exact"] < 0.01


def test_inducing_points_at_all_observations_are_exact() -> None:
    x, places = torch.linspace(-1, 1, 9, dtype=torch.float64)[:, None], {"all": normal(6, 1)}
    y = x.sin()
    ((mean, std),) = _collapsed((x, y), places, 9).values()
    exact = GP(RBF(SCALE), lw.Gaussian(1 / VARIANCE), mean="zero").fit((x, y)).outputs(places["all"]).marginal()
    torch.testing.assert_close(mean, exact.mean[:, 0], rtol=0, atol=1e-6)
    torch.testing.assert_close(std.square(), exact.variance[:, 0], rtol=0, atol=1e-6)


def test_made_up_molecules_have_counts_and_standard_activities(generator: torch.Generator) -> None:
    counts, activity = generated(50, 60, 20, generator)
    assert counts.sum(1).tolist() == [PARTS * EACH + OWN] * 50 and float(counts.max()) > 1
    assert float(activity.mean()) == pytest.approx(0, abs=1e-12) and float(activity.std()) == pytest.approx(1)
    assert float(Tanimoto()(counts, counts).min()) > 0
