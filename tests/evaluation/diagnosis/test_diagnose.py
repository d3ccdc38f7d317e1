from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import lapwing as lw
from lapwing.evaluation.diagnosis import Diagnosis, diagnose, diagnose_samples
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.ground.errors import ConfigError, DataError, NumericalError, ShapeError, UnsupportedError
from lapwing.ground.shared import Shared
from lapwing.linalg import Dense, Diagonal
from tests.checker import unchecked
from tests.posterior_cases import problem

DRAWS = 200


def spectrum(size: int, condition: float = 1e4) -> Tensor:
    return torch.logspace(0, torch.tensor(condition).log10().item(), size, dtype=torch.float64)


def draws(precision: Diagonal | Dense, generator: torch.Generator, count: int = DRAWS) -> Tensor:
    noise = torch.randn(precision.shape[0], count, dtype=torch.float64, generator=generator)
    return (precision.inverse_root() @ noise).mT


def rotated(size: int, generator: torch.Generator, condition: float = 1e4) -> Dense:
    q = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator)).Q
    return Dense(q @ torch.diag(spectrum(size, condition)) @ q.mT)


def test_distances_and_quantiles_are_those_of_the_definition(generator: torch.Generator) -> None:
    precision = rotated(30, generator)
    mean = torch.randn(30, dtype=torch.float64, generator=generator)
    samples = mean + draws(precision, generator, 9)
    found = diagnose_samples(samples, mean, precision, directions=0)
    dense, delta = precision.dense(), samples - mean
    expected = torch.stack([row @ dense @ row for row in delta])
    torch.testing.assert_close(found.distances, expected)
    theory, sorted_ = found.quantiles()
    torch.testing.assert_close(sorted_, expected.sort().values)
    chi2 = torch.distributions.Chi2(torch.tensor(30.0, dtype=torch.float64))
    torch.testing.assert_close(chi2.cdf(theory), (torch.arange(9, dtype=torch.float64) + 0.5) / 9)
    assert found["mean"].statistic == pytest.approx(float(9 * delta.mean(0) @ dense @ delta.mean(0)))


def test_projections_are_those_of_the_definition_and_independent(generator: torch.Generator) -> None:
    precision = rotated(30, generator)
    samples = draws(precision, generator, 4000)
    u = torch.randn(30, 5, dtype=torch.float64, generator=generator)
    (family,) = diagnose_samples(samples, torch.zeros(30).double(), precision, directions={"mine": u}).families
    dense = precision.dense()
    first = samples @ dense @ u[:, 0] / (u[:, 0] @ dense @ u[:, 0]).sqrt()
    torch.testing.assert_close(family.z[0], first)
    torch.testing.assert_close(family.z @ family.z.mT / 4000, torch.eye(5).double(), atol=0.07, rtol=0)
    torch.testing.assert_close(family.curvature[2], u[:, 2] @ dense @ u[:, 2] / u[:, 2].square().sum())
    defect = dense @ u[:, 3] - family.curvature[3] * u[:, 3]
    torch.testing.assert_close(family.residual[3], defect.norm() / (family.curvature[3] * u[:, 3].norm()))


def test_dependent_directions_are_left_out(generator: torch.Generator) -> None:
    precision = rotated(30, generator)
    u = torch.randn(30, 3, dtype=torch.float64, generator=generator)
    twice = torch.cat([u, u[:, :1] + 2 * u[:, 1:2]], dim=1)[:, [0, 1, 3, 2]]
    (family,) = diagnose_samples(
        draws(precision, generator), torch.zeros(30).double(), precision, directions={"mine": twice}
    ).families
    (without,) = diagnose_samples(
        draws(precision, generator), torch.zeros(30).double(), precision, directions={"mine": u}
    ).families
    torch.testing.assert_close(family.curvature, without.curvature)
    assert family.z.shape == (3, DRAWS)


@pytest.mark.parametrize("seed", range(3))
def test_right_draws_pass(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    precision = rotated(60, generator)
    found = diagnose_samples(draws(precision, generator), torch.zeros(60).double(), precision, generator=generator)
    assert found.passed and found.rejected == ()
    assert [family.name for family in found.families] == ["random", "stiff", "sloppy"]
    assert str(found).startswith("200 draws of 60 numbers agree with their precision: none of 12 checks rejects")
    assert "off by 6.1 % in all directions, or by 12 % along" in str(found)
    assert str(found).endswith(".") and ". " not in str(found), "one sentence"


def stiff_and_not(
    generator: torch.Generator, variance: float, wrong: int
) -> tuple[Tensor, Diagonal, dict[str, Tensor]]:
    """Draws in 15,000 directions, the ``wrong`` stiffest with this variance, and unit vectors along 16 of them."""
    size = 15_000
    precision = Diagonal(spectrum(size).flip(0))
    samples = draws(precision, generator)
    samples[:, :wrong] *= variance**0.5
    return samples, precision, {"stiff": torch.eye(size, 16, dtype=torch.float64)}


@pytest.mark.parametrize("variance", [0.9, 1.1])
def test_distances_miss_two_hundred_stiff_directions_off_by_a_tenth_and_directions_find_them(
    variance: float, generator: torch.Generator
) -> None:
    samples, precision, stiff = stiff_and_not(generator, variance, 200)
    found = diagnose_samples(samples, torch.zeros(15_000).double(), precision, directions=stiff)
    assert found["radius"].p_value > 0.01 and found["mean"].p_value > 0.01
    assert found["stiff spread"].p_value < 1e-3
    assert not found.passed


@pytest.mark.parametrize("variance", [0.5, 2.0])
def test_a_family_off_by_two_is_found_by_directions_and_only_in_numbers_by_distances(
    variance: float, generator: torch.Generator
) -> None:
    samples, precision, stiff = stiff_and_not(generator, variance, 16)
    few = diagnose_samples(samples, torch.zeros(15_000).double(), precision, directions=stiff)
    assert few["radius"].p_value > 0.01
    assert few["stiff spread"].p_value < 1e-30 and few.families[0].variance == pytest.approx(variance, rel=0.1)
    assert {check.name for check in few.rejected} == {"stiff spread", "stiff shape", "stiff worst"}
    samples, precision, stiff = stiff_and_not(generator, variance, 200)
    many = diagnose_samples(samples, torch.zeros(15_000).double(), precision, directions=0)
    assert many["radius"].p_value < 1e-6


def test_a_sloppy_mean_error_is_found_along_its_direction(generator: torch.Generator) -> None:
    samples, precision, _ = stiff_and_not(generator, 1.0, 1)
    samples[:, -1] += 1.0
    unit = torch.zeros(15_000, 2, dtype=torch.float64)
    unit[-1, 0] = unit[-2, 1] = 1
    found = diagnose_samples(samples, torch.zeros(15_000).double(), precision, directions={"sloppy": unit})
    assert found["mean"].p_value > 0.01
    assert found.rejected[0].name == "sloppy worst"
    assert "variances over what they should be: all 1" in str(found)


def test_single_precision_draws_of_an_ill_conditioned_precision_pass(generator: torch.Generator) -> None:
    precision = rotated(80, generator, 1e6)
    samples = draws(precision, generator).float()
    single = Dense(precision.dense().float())
    found = diagnose_samples(samples, torch.zeros(80), single, generator=generator)
    assert found.passed and found.distances.dtype == torch.float64


def gaussian(precision: Diagonal, scale: float = 1.0) -> SimpleNamespace:
    mean = torch.arange(float(precision.shape[0]), dtype=torch.float64)

    def sample(samples: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
        assert generator is not None
        return mean + scale * draws(precision, generator, samples)

    return SimpleNamespace(sample=sample, precision_operator=precision, network=SimpleNamespace(weights=mean))


def test_a_posterior_is_diagnosed_by_its_own_draws() -> None:
    precision = Diagonal(spectrum(40, 1e2))
    found = [diagnose(gaussian(precision), generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert all(each.passed and len(each.distances) == 200 and each.dimension == 40 for each in found)
    assert torch.equal(found[0].families[1].z, found[1].families[1].z)
    assert not torch.equal(found[0].distances, found[2].distances)
    wide = diagnose(gaussian(precision, 1.2), 50, generator=torch.Generator().manual_seed(0))
    assert isinstance(wide, Diagnosis) and not wide.passed and "variances over" in str(wide)


@pytest.mark.parametrize(
    "structure", [lw.Full(view="weights"), lw.KFAC(), lw.Diagonal(), lw.LowRank(5), lw.MatrixFree()]
)
def test_draws_of_every_structure_agree_with_its_own_precision(structure: Any, generator: torch.Generator) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    x, y = torch.randn(40, 3, generator=generator), torch.arange(40) % 3
    posterior = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(0.5), structure=structure).fit(model, (x, y))
    found = diagnose(posterior, 100, directions=5, generator=generator)
    assert found.passed and found.dimension == 45, str(found)
    other = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(1.0), structure=structure).fit(model, (x, y))
    assert not diagnose_samples(
        posterior.sample(100, generator=generator), posterior.network.weights, other.precision_operator, directions=0
    ).passed


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"samples": torch.zeros(1, 3)}, ConfigError, "samples of at least 2. Got 1"),
        ({"samples": torch.zeros(3, 4)}, ShapeError, r"samples \[s, d\].*\[3, 4\], \[3\] and \[3, 3\]"),
        ({"mean": torch.zeros(1)}, ShapeError, "samples.T"),
        ({"samples": torch.full((4, 3), torch.nan)}, DataError, "4 of 4 draws"),
        ({"level": 1.0}, ConfigError, "level=1.0"),
        ({"directions": -1}, ConfigError, "directions of at least 0. Got -1"),
        ({"directions": {"mine": torch.zeros(3)}}, ShapeError, r"\[3, k\] for 'mine'"),
        ({"directions": {"mine": torch.zeros(3, 1)}}, NumericalError, "uᵀΛu > 0"),
        ({"precision": Diagonal(torch.tensor([1.0, -1.0, -9.0]))}, NumericalError, "positive definite"),
    ],
)
def test_bad_input_costs_a_sentence(change: dict[str, object], error: type[Exception], message: str) -> None:
    generator = torch.Generator().manual_seed(0)
    good = {"samples": torch.randn(4, 3, generator=generator), "mean": torch.zeros(3), "directions": 0}
    good["precision"] = Diagonal(torch.ones(3))
    with pytest.raises(error, match=message):
        diagnose_samples(**(good | change))


def test_an_unknown_check_is_named_with_those_there_are() -> None:
    found = diagnose_samples(torch.randn(4, 3), torch.zeros(3), Diagonal(torch.ones(3)), directions=0)
    with pytest.raises(KeyError, match="radius, mean, pairs"):
        found["stiff"]


def test_what_has_no_draws_or_precision_is_refused() -> None:
    plain = PlainNetwork(torch.nn.Linear(2, 3), lw.Categorical())
    with unchecked(), pytest.raises(UnsupportedError, match=r"PlainNetwork.*diagnose_samples"):
        diagnose(cast("Any", plain))


def test_a_posterior_made_of_draws_is_tested_on_those_it_has(generator: torch.Generator) -> None:
    case = problem("categorical")
    structure = lw.Sampled(40, lw.solvers.CG(rtol=1e-8))
    posterior = case.fit(lw.Laplace(case.likelihood, structure=structure))
    assert isinstance(posterior, lw.posteriors.SampledPosterior)
    found = diagnose(posterior, generator=generator)
    assert len(found.distances) == 40 and found.passed
    wrong = replace(
        posterior,
        solved=Shared(replace(posterior.solution, value=1.3 * posterior.draws), posterior.perturbation),
    )
    assert not diagnose(wrong, 30, generator=generator).passed
