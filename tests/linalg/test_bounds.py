"""The bound on a log determinant holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lapwing.ground.errors import ConfigError, NumericalError
from lapwing.linalg.bounds import shifted_log_determinant_upper


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
