"""Every error has three parts, and a built-in class that callers already catch."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import lapwing as lw
from lapwing.ground import errors
from tests.checker import unchecked
from tests.posterior_cases import refused

KINDS = {
    errors.ConfigError: ValueError,
    errors.DataError: ValueError,
    errors.ShapeError: ValueError,
    errors.MismatchError: ValueError,
    errors.NumericalError: ArithmeticError,
    errors.TooLargeError: MemoryError,
    errors.TooSlowError: RuntimeError,
    errors.UnsupportedError: TypeError,
}


@pytest.mark.parametrize(("kind", "builtin"), KINDS.items())
def test_says_what_was_expected_what_came_and_what_to_try(kind: type[errors.LapwingError], builtin: type) -> None:
    with refused(kind, "Expected a cat. Got a dog. Try meowing."):
        raise kind("a cat", "a dog", "meowing")
    assert issubclass(kind, errors.LapwingError) and issubclass(kind, builtin)
    again = pickle.loads(pickle.dumps(kind("a cat", "a dog", "meowing")))
    assert type(again) is kind and (again.expected, again.got, again.hint) == ("a cat", "a dog", "meowing")


def test_every_error_of_the_module_is_tested() -> None:
    public = {value for name, value in vars(errors).items() if name.endswith("Error")}
    assert public == {*KINDS, errors.LapwingError}


def test_warnings_are_shown_by_default() -> None:
    assert issubclass(errors.DataWarning, UserWarning)


def test_an_option_is_one_of_those_there_are() -> None:
    with pytest.raises(
        errors.ConfigError, match=r"view= to be one of 'auto', 'weights'\. Got 'both'\. Try view='auto'"
    ):
        errors.check_option("view", "both", ("auto", "weights"))


def test_a_count_has_a_least_and_a_number_is_positive() -> None:
    errors.check_count("samples", 2, 2)
    with pytest.raises(errors.ConfigError, match=r"samples of at least 2\. Got 1\. Try samples=2"):
        errors.check_count("samples", 1, 2)
    errors.check_positive("rtol", 1e-300)
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(errors.ConfigError, match=rf"a positive rtol\. Got {bad}\. Try rtol=1e-6"):
            errors.check_positive("rtol", bad)


@pytest.mark.parametrize("bad", [5.5, float("nan"), True])
def test_a_count_is_a_whole_number(bad: float) -> None:
    with pytest.raises(errors.ConfigError, match=r"samples to be a whole number, at least 2\. Got .*\. Try samples=2"):
        errors.check_count("samples", bad, 2)


def test_a_level_is_a_probability() -> None:
    errors.check_fraction("level", 0.5, "level=0.95")
    for bad in (0.0, 1.0, 95.0, float("nan")):
        with pytest.raises(errors.ConfigError, match=rf"between 0 and 1\. Got level={bad}"):
            errors.check_fraction("level", bad, "level=0.95")


def test_warnings_name_the_line_that_led_to_them() -> None:
    x = torch.linspace(-1, 1, 20)[:, None]
    posterior = lw.Laplace(lw.Gaussian()).fit(torch.nn.Linear(1, 1), (x, x))
    with pytest.warns(errors.ConvergenceWarning, match="ended after 1 steps") as caught:
        lw.tune(posterior, lw.EM(steps=1))
    own = [warning for warning in caught if warning.category is errors.ConvergenceWarning]
    assert {warning.filename for warning in own} == {__file__}


@pytest.mark.parametrize("bad", ["a", None, (1.0,), 1j, True])
def test_a_number_is_a_number(bad: object) -> None:
    with refused(errors.ConfigError, "a positive clip"):
        errors.check_positive("clip", bad, "10.0")
    with refused(errors.ConfigError, "rtol between 0 and 1"):
        errors.check_fraction("rtol", bad, "rtol=0.1")


@pytest.mark.parametrize(
    "bad", [True, (1.0, True), [False, 2.0], torch.tensor([True]), torch.tensor(True), np.array([True])]
)
def test_a_boolean_is_no_precision(bad: object) -> None:
    with refused(errors.ConfigError, "positive finite noise precisions"):
        errors.precisions_of("noise", bad, "Gaussian(1.0)")
    assert errors.precisions_of("noise", (1, 4), "Gaussian(1.0)").tolist() == [1.0, 4.0]


def test_a_boolean_is_no_number_of_a_likelihood() -> None:
    with unchecked(), refused(errors.ConfigError, "a positive df"):
        lw.StudentT(df=True)
    with unchecked(), refused(errors.ConfigError, "noise precisions"):
        lw.Gaussian(True)


def test_a_fraction_may_begin_at_0() -> None:
    errors.check_fraction("momentum", 0.0, "0.9", zero=True)
    for bad, zero, expected in ((0.0, False, "between 0 and 1"), (1.0, True, "from 0 and below 1")):
        with refused(errors.ConfigError, expected):
            errors.check_fraction("momentum", bad, "0.9", zero=zero)


def test_a_count_suggests_what_is_usual() -> None:
    with refused(errors.ConfigError, "samples of at least 1"):
        errors.check_count("samples", 0, usual=64)


def test_a_class_is_not_its_instance_and_arrays_are_shown_in_a_line() -> None:
    with refused(errors.ConfigError, "preconditioner"):
        errors.check_kind("preconditioner", lw.LowRank, (lw.preconditioners.Preconditioner,), "LowRank(100)")
    with refused(errors.ConfigError, "x to be of type float"):
        errors.check_kind("x", torch.zeros(2, 2), (float,), "0.0")
