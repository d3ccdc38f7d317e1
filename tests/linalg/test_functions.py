"""Functions of a matrix; its log-determinant, with an error as stated; the bound on that holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError, UnsupportedError
from lapwing.ground.results import Estimate
from lapwing.linalg import Dense, Diagonal, LowRank, Structured
from lapwing.linalg.functions import apply_function, log_determinant, shifted_log_determinant_upper
from tests.linalg.cases import normal, spd, spectrum
from tests.linalg.test_lanczos import counted
from tests.meter import Meter


def precision(d: int = 30) -> Tensor:
    """A low-rank matrix with a decaying spectrum, plus a shift: what the precision of a network looks like."""
    factor = normal(d, 12, seed=3) * spectrum(12, 300.0)
    return factor @ factor.mT + 0.1 * torch.eye(d, dtype=torch.float64)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def z_scores(matrix: Tensor, seeds: int, **options) -> Tensor:
    truth = torch.logdet(matrix).item()
    found = [log_determinant(Dense(matrix), generator=seeded(seed), **options) for seed in range(seeds)]
    return torch.tensor([(estimate.value - truth) / estimate.stderr for estimate in found], dtype=torch.float64)


@pytest.mark.parametrize(("preconditioned", "seeds"), [(False, 200), (True, 80)])
def test_it_covers_the_truth_at_its_stated_error(preconditioned: bool, seeds: int) -> None:
    matrix = precision(20)
    preconditioner = Diagonal(matrix.diagonal()) if preconditioned else None
    z = z_scores(matrix, seeds, samples=64, preconditioner=preconditioner)
    assert (z.abs() <= 1.96).double().mean() >= 0.92  # 94.5 % expected, give or take 1.6
    assert abs(z.mean()) < 0.25
    assert 0.85 < z.std() < 1.2


def test_steps_that_do_not_suffice_widen_the_error() -> None:
    matrix = spd(60, 1e6)
    short, long = (log_determinant(Dense(matrix), steps=steps, generator=seeded(0)) for steps in (10, 200))
    assert short.value > long.value + long.stderr  # Gauss quadratures of the logarithm err upwards
    assert short.stderr > 2 * long.stderr
    assert (z_scores(matrix, 20, steps=10).abs() < 4).all()


def test_a_preconditioner_lowers_variance_and_steps() -> None:
    matrix = precision(60)
    values, vectors = torch.linalg.eigh(matrix - 0.1 * torch.eye(60).double())
    top = LowRank(vectors[:, -5:] * values[-5:].sqrt()).shifted(0.1)
    found: dict[bool, tuple[Estimate, int]] = {}
    for known in (False, True):
        operator, columns = counted(matrix)
        estimate = log_determinant(operator, preconditioner=top if known else None, generator=seeded(0))
        found[known] = (estimate, sum(columns))
        assert abs(estimate.value - torch.logdet(matrix).item()) < 3 * estimate.stderr
    assert found[True][0].stderr < 0.8 * found[False][0].stderr
    assert found[True][1] < 0.8 * found[False][1]


@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4])
def test_it_is_exact_where_the_preconditioner_is(condition: float) -> None:
    for preconditioner in (Dense(spd(20, condition)), LowRank(normal(20, 3)).shifted(1 / condition)):
        operator, columns = counted(preconditioner.dense())
        estimate = log_determinant(operator, samples=3, preconditioner=preconditioner, generator=seeded(0))
        assert estimate.value == pytest.approx(preconditioner.logdet().item(), abs=1e-13 * 20 * condition)
        assert estimate.stderr < 1e-13 * 20 * condition
        assert sum(columns) <= 4 * 3


@pytest.mark.parametrize("d", [1, 4])
def test_it_is_exact_for_diagonal_operators(d: int) -> None:
    operator: Structured = Diagonal(spectrum(d, 1e3))
    estimate = log_determinant(operator, samples=2, generator=seeded(0))
    assert estimate.value == pytest.approx(operator.logdet().item())
    assert estimate.stderr < 1e-9
    assert estimate.samples == 2


def test_it_runs_in_float32_to_what_products_resolve() -> None:
    matrix = precision()
    single = log_determinant(Dense(matrix.float()), samples=200, generator=seeded(0))
    double = log_determinant(Dense(matrix), samples=200, generator=seeded(0))
    assert single.value == pytest.approx(double.value, abs=0.02 * double.stderr + 1e-3)


@pytest.mark.parametrize("d", [3, 40])
@pytest.mark.parametrize("condition", [1.0, 100.0])
def test_the_stated_error_is_never_below_the_rounding_of_products(condition: float, d: int) -> None:
    known = Dense(spd(d, condition).float())
    truth = torch.logdet(known.dense().double()).item()
    eps = torch.finfo(torch.float32).eps
    for seed in range(5):
        estimate = log_determinant(counted(known.dense())[0], samples=8, preconditioner=known, generator=seeded(seed))
        assert eps * d <= estimate.stderr < 3 * eps * d
        assert abs(estimate.value - truth) <= 3 * estimate.stderr


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="samples of at least 2"):
        log_determinant(Dense(spd(4, 10.0)), samples=1)
    with pytest.raises(ConfigError, match="steps of at least 1"):
        log_determinant(Dense(spd(4, 10.0)), steps=0)
    with pytest.raises(ConfigError, match="a positive bias"):
        log_determinant(Dense(spd(4, 10.0)), bias=0.0)
    with pytest.raises(ShapeError, match="a root with 4 rows"):
        log_determinant(Dense(spd(4, 10.0)), preconditioner=Diagonal(torch.ones(3).double()))
    with pytest.raises(NumericalError, match=r"a positive definite operator\. Got a Ritz value of -1"):
        log_determinant(Diagonal(torch.tensor([-1.0, 2.0]).double()), generator=seeded(0))
    with pytest.raises(NumericalError, match="finite numbers"):
        log_determinant(Diagonal(torch.tensor([float("inf"), 2.0])))


def uniform(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def spectra(generator: torch.Generator) -> list[Tensor]:
    """A decaying, a spread, a clustered, a two-point and a constant spectrum of some size and scale."""
    size = int(torch.randint(1, 60, (), generator=generator))
    scale, rate = 10 ** (8 * uniform(2, generator=generator) - 4)
    k = torch.arange(size, dtype=torch.float64)
    two = torch.where(uniform(size, generator=generator) < 0.5, 1.0, 1 + rate)
    kinds = [
        (-k * rate.clamp(max=20 / size)).exp(),
        10 ** (8 * uniform(size, generator=generator) - 4),
        1 + 1e-7 * uniform(size, generator=generator),
        two,
        torch.ones(size).double(),
    ]
    return [scale * kind for kind in kinds]


def moments(values: Tensor) -> tuple[Tensor, Tensor, int]:
    return values.sum(), values.square().sum(), len(values)


def test_the_bound_holds_for_low_rank_plus_a_shift(generator: torch.Generator) -> None:
    for _ in range(60):
        for values in spectra(generator):
            rank, shift = len(values), float(10 ** (4 * uniform(1, generator=generator) - 2))
            size = rank + 7
            truth = (values + shift).log().sum() + 7 * torch.tensor(shift, dtype=torch.float64).log()
            rounding = 1e-12 * size * (1 + (values + shift).log().abs().max() + abs(truth / size))
            trace, square, _ = moments(values)
            for kept in (rank, rank + 3, None):
                for largest in (None, values.max(), trace):
                    upper = shifted_log_determinant_upper(trace, square, size, shift, rank=kept, largest=largest)
                    assert upper >= truth - rounding


def test_it_is_the_two_by_two_form_of_the_source() -> None:
    values, shift = torch.tensor([0.3, 1.0, 2.5, 7.0], dtype=torch.float64), 0.4
    trace, square, n = moments(values)
    mu, beta = moments(values + shift), torch.tensor(9.0 + shift, dtype=torch.float64)
    t = (beta * mu[0] - mu[1]) / (beta * n - mu[0])
    nodes = torch.stack([beta, t])
    weights = torch.linalg.solve(torch.stack([nodes, nodes.square()]), torch.stack(mu[:2]))
    bound = shifted_log_determinant_upper(trace, square, n, shift, largest=9.0)
    torch.testing.assert_close(bound, nodes.log() @ weights, rtol=1e-12, atol=0)


def test_the_gaps_the_source_s_example_has() -> None:
    """Eigenvalues 1000 exp(-k/4) of rank 40 in 400 dimensions: the gaps stated with the method's description."""
    values = 1e3 * torch.exp(-torch.arange(40, dtype=torch.float64) / 4)
    trace, square, _ = moments(values)
    truth = values.log1p().sum()
    assert truth.item() == pytest.approx(105.3, abs=0.05)
    gaps = {(40, trace): 80.3, (40, values.max()): 63.2, (80, trace): 209.9, (400, trace): 851.7}
    for (rank, largest), gap in gaps.items():
        upper = shifted_log_determinant_upper(trace, square, 400, 1.0, rank=rank, largest=largest)
        assert (upper - truth).item() == pytest.approx(gap, abs=0.06)
    default = shifted_log_determinant_upper(trace, square, 400, 1.0, rank=40)
    assert 63.2 < (default - truth).item() < 80.3


def test_the_bound_is_exact_on_two_points_of_which_one_is_given() -> None:
    values = torch.tensor([5.0, 5.0, 0.5, 0.5, 0.5], dtype=torch.float64)
    bound = shifted_log_determinant_upper(*moments(values), 0.1, largest=5.0)
    torch.testing.assert_close(bound, (values + 0.1).log().sum(), rtol=1e-13, atol=0)


def test_a_shift_dwarfing_the_matrix_costs_no_digits() -> None:
    values = torch.tensor([1e-9, 3e-9, 0.0], dtype=torch.float64)
    trace, square, n = moments(values)
    truth = values.log1p().sum()
    torch.testing.assert_close(shifted_log_determinant_upper(trace, square, n, 1.0), truth, rtol=1e-6, atol=0)


@pytest.mark.parametrize("options", [{"rank": 5}, {"largest": 10.0}])
def test_gradients_are_those_of_finite_differences(options: dict[str, float]) -> None:
    inputs = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (10.8, 56.3, 1.1)]
    assert torch.autograd.gradcheck(lambda m, s, e: shifted_log_determinant_upper(m, s, 9, e, **options), inputs)


def test_gradients_stay_finite_where_the_rule_degenerates() -> None:
    for values in (torch.ones(3), torch.zeros(3), torch.tensor([2.0])):
        inputs = [v.double().requires_grad_() for v in (values.sum(), values.square().sum(), torch.tensor(0.5))]
        value = shifted_log_determinant_upper(inputs[0], inputs[1], len(values), inputs[2])
        torch.testing.assert_close(value, (values.double() + 0.5).log().sum())
        assert all(bool(grad.isfinite()) for grad in torch.autograd.grad(value, inputs))


def test_estimated_traces_no_matrix_has_are_taken_back_to_one_that_has() -> None:
    low = shifted_log_determinant_upper(10.0, 1.0, 5, 0.1)  # tr G² below (tr G)² / n
    assert low.item() == pytest.approx(shifted_log_determinant_upper(10.0, 20.0, 5, 0.1).item())
    high = shifted_log_determinant_upper(10.0, 1e6, 5, 0.1, largest=7.0)  # above λ_max tr G: the free node is at α
    weight = 10.0 / 7.0
    expected = torch.tensor([7.1, 0.1]).double().log() @ torch.tensor([weight, 5 - weight]).double()
    assert high.item() == pytest.approx(expected.item())
    assert shifted_log_determinant_upper(torch.tensor(3.0), torch.tensor(9.0), 1, 1.0).dtype == torch.float64


def test_bad_input_of_the_bound() -> None:
    with pytest.raises(NumericalError, match=r"a positive shift.*Try more probes"):
        shifted_log_determinant_upper(1.0, 1.0, 5, 0.0)
    with pytest.raises(NumericalError, match="positive semi-definite G"):
        shifted_log_determinant_upper(-1.0, 1.0, 5, 1.0)
    with pytest.raises(NumericalError, match="positive semi-definite G"):
        shifted_log_determinant_upper(float("nan"), 1.0, 5, 1.0)
    with pytest.raises(ConfigError, match="a rank from 1 to the size 5"):
        shifted_log_determinant_upper(1.0, 1.0, 5, 1.0, rank=6)


def function_of(matrix: Tensor, function) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(function(values)) @ vectors.mT


@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4, 1e6])
@pytest.mark.parametrize("function", [torch.rsqrt, torch.sqrt, torch.log, torch.exp])
def test_functions_of_a_matrix(condition: float, function) -> None:
    matrix, b = spd(50, condition), normal(50, 2)
    solution = apply_function(Dense(matrix), b, function, rtol=1e-10)
    exact = function_of(matrix, function) @ b
    error = torch.linalg.vector_norm(solution.value - exact, dim=0) / torch.linalg.vector_norm(exact, dim=0)
    assert solution.converged
    assert (error < 1e-9).all()
    assert solution.matvecs == 2 * solution.iterations


def test_a_function_that_ran_out_of_steps_says_how_far_it_got() -> None:
    matrix, b = spd(200, 1e4), normal(200)
    exact = function_of(matrix, torch.rsqrt) @ b
    for steps in (1, 5, 40):
        solution = apply_function(Dense(matrix), b, torch.rsqrt, steps=steps, rtol=1e-12)
        error = torch.linalg.vector_norm(solution.value - exact) / torch.linalg.vector_norm(exact)
        assert (solution.stopped, solution.iterations, solution.value.shape) == ("iterations", steps, b.shape)
        assert 0.3 * error < solution.residual[0]


def test_columns_whose_bases_do_not_fit_take_turns() -> None:
    """Each column gets what it gets beside all others; memory that of two columns."""
    matrix, b = spd(300, 1e3), normal(300, 7)
    operator, columns = counted(matrix)
    with Meter() as meter:
        solution = apply_function(operator, b, torch.rsqrt, steps=60, rtol=1e-14, max_bytes=2 * 8 * 300 * 60)
    assert (max(columns), solution.matvecs, solution.iterations) == (2, sum(columns), 60)
    assert meter.most < 4 * 8 * 300 * 60
    exact = [apply_function(Dense(matrix), column, torch.rsqrt, steps=60, rtol=1e-14) for column in b.unbind(1)]
    torch.testing.assert_close(solution.value, torch.stack([one.value for one in exact], 1), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(solution.residual, torch.cat([one.residual for one in exact]), rtol=1e-6, atol=1e-14)


def test_functions_of_zero_and_of_float32() -> None:
    matrix, b = spd(20, 100.0), normal(20, 2)
    b[:, 1] = 0.0
    solution = apply_function(Dense(matrix.float()), b.float(), torch.sqrt)
    assert solution.value.dtype == torch.float32
    assert solution.residual[1] == 0
    torch.testing.assert_close(solution.value.double(), function_of(matrix, torch.sqrt) @ b, rtol=1e-4, atol=1e-4)


def test_bad_input_of_a_function() -> None:
    operator, b = Dense(spd(4, 10.0)), normal(4)
    with pytest.raises(ConfigError, match="a positive rtol"):
        apply_function(operator, b, torch.sqrt, rtol=0.0)
    with pytest.raises(UnsupportedError, match="float64"):
        apply_function(operator, b.float(), torch.sqrt)
    with pytest.raises(NumericalError, match="finite numbers"):
        apply_function(Diagonal(torch.tensor([1.0, float("nan")])), torch.ones(2), torch.sqrt)
    with pytest.raises(NumericalError, match=r"finite on the spectrum.*positive definite"):
        apply_function(Diagonal(torch.tensor([-1.0, 1.0, 2.0])), torch.ones(3), torch.log)
