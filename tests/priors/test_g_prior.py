"""The diagonal g-prior: its scale, what guards it, what it is equal to."""

from __future__ import annotations

import pytest
import torch

from lapwing.ground.errors import ConfigError, NumericalError, ShapeError
from lapwing.ground.layout import Layout
from lapwing.priors import GPrior
from tests.checker import unchecked
from tests.posterior_cases import refused

LAYOUT = Layout(("a", "b", "c"), ((3,), (2,), (1,)))
DIAGONAL = torch.tensor([4.0, 2.0, 0.0, 1e-12, 3.0, 0.0], dtype=torch.float64)


def test_the_precision_is_in_units_of_the_curvature() -> None:
    prior = GPrior(3.0).scaled_by(DIAGONAL.clamp_min(1.0), LAYOUT)
    torch.testing.assert_close(prior.diagonal(LAYOUT, DIAGONAL), 3.0 * DIAGONAL.clamp_min(1.0))
    assert prior.groups(LAYOUT)[1] == 1 and prior.precisions(LAYOUT).tolist() == [3.0]
    torch.testing.assert_close(prior.with_precisions(torch.tensor([6.0])).diagonal(LAYOUT, DIAGONAL),
                               2 * prior.diagonal(LAYOUT, DIAGONAL))  # fmt: skip


def test_weights_the_data_say_nothing_about_take_a_fraction_of_their_parameters_mean() -> None:
    prior = GPrior(floor=1e-2).scaled_by(DIAGONAL, LAYOUT)
    expected = torch.tensor([4.0, 2.0, 0.02, 0.015, 3.0, 0.015], dtype=torch.float64)
    torch.testing.assert_close(prior.relative(LAYOUT), expected, rtol=1e-10, atol=0)


def test_the_guard_follows_the_scale_of_a_parameter() -> None:
    """Rescaled weights of one parameter, the dead ones among them, keep their variance in units of the rescaling."""
    stretched = DIAGONAL.clone()
    stretched[:3] /= 25
    plain, other = (GPrior().scaled_by(values, LAYOUT).relative(LAYOUT) for values in (DIAGONAL, stretched))
    torch.testing.assert_close(25 * other[:3], plain[:3], rtol=1e-12, atol=0)


def test_the_diagonal_is_copied() -> None:
    values = DIAGONAL.clone()
    prior = GPrior().scaled_by(values, LAYOUT)
    values.zero_()
    assert prior.relative(LAYOUT)[0] == 4.0


def test_equal_where_all_numbers_are() -> None:
    one, other = GPrior(2.0).scaled_by(DIAGONAL, LAYOUT), GPrior(2.0).scaled_by(DIAGONAL, LAYOUT)
    assert one == other and hash(one) == hash(other)
    assert one != GPrior(2.0).scaled_by(2 * DIAGONAL, LAYOUT) and one != GPrior(2.0) and GPrior(2.0) != one
    assert GPrior(2.0) == GPrior(2.0) and GPrior(2.0) != GPrior(2.0, samples=4) and GPrior(2.0) != "prior"
    assert repr(one) == "GPrior(precision=2, samples=None, floor=1e-06)"


def test_an_unfitted_prior_has_no_diagonal() -> None:
    with refused(ConfigError, "knows the curvature"):
        GPrior(2.0).diagonal(LAYOUT, DIAGONAL)


@pytest.mark.parametrize("bad", [torch.zeros(6), torch.tensor([1.0, 1, 1, 1, 1, -1]), torch.full((6,), torch.nan)])
def test_bad_diagonals(bad: torch.Tensor) -> None:
    with refused(NumericalError, "not negative"):
        GPrior().scaled_by(bad, LAYOUT)


def test_bad_shapes_and_options() -> None:
    with refused(ShapeError, "each of 6 weights"):
        GPrior().scaled_by(DIAGONAL[:5], LAYOUT)
    with refused(ShapeError, "for 2 weights"):
        GPrior().scaled_by(DIAGONAL, LAYOUT).relative(Layout(("b",), ((2,),)))
    with refused(ConfigError, "one prior precision for all"):
        GPrior().with_precisions(torch.ones(2))
    for bad in (0.0, 1.0, "a"):
        with unchecked(), refused(ConfigError, "floor between 0 and 1"):
            GPrior(**{"floor": bad})
    for bad in (0, 2.5):
        with unchecked(), refused(ConfigError, "samples=16"):
            GPrior(**{"samples": bad})
