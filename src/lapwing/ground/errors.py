"""Every error lapwing raises: what was expected, what came, what to try."""

from __future__ import annotations

import inspect
import math
import numbers
import re
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


class LapwingError(Exception):
    """The root of all lapwing errors; its message has three parts.

    Args:
        expected: What the call needs, with shapes and units; completes "Expected ...".
        got: What came instead; completes "Got ...".
        hint: What to do about it; completes "Try ...".

    Example:
        >>> raise LapwingError("a positive prior precision", "-1.0", "Isotropic(1.0)")
        Traceback (most recent call last):
        ...
        lapwing.ground.errors.LapwingError: Expected a positive prior precision. Got -1.0. Try Isotropic(1.0).
    """

    def __init__(self, expected: str, got: str, hint: str) -> None:
        super().__init__(f"Expected {expected}. Got {got}. Try {hint}.")
        self.expected = expected
        self.got = got
        self.hint = hint

    def __reduce__(self) -> tuple[type[LapwingError], tuple[str, str, str]]:
        """What pickle takes: another process raises it as it was."""
        return type(self), (self.expected, self.got, self.hint)


class ConfigError(LapwingError, ValueError):
    """An option has a value that makes no sense, whatever the data."""


class DataError(LapwingError, ValueError):
    """The data cannot be used: empty, not finite, exhausted, or not the same on a second pass."""


class ShapeError(LapwingError, ValueError):
    """A tensor has the wrong shape."""


class MismatchError(LapwingError, ValueError):
    """A saved posterior and a network, or a network then and now, do not belong together."""


class NumericalError(LapwingError, ArithmeticError):
    """A number went wrong: a matrix is not positive definite, or a result is not finite."""


class TooLargeError(LapwingError, MemoryError):
    """The call would need more memory than allowed; nothing was allocated."""


class TooSlowError(LapwingError, RuntimeError):
    """The call took more seconds than it was allowed, and was ended."""


class UnsupportedError(LapwingError, TypeError):
    """The combination of choices has no implementation."""


class DataWarning(UserWarning):
    """The data can be used, but something about them is probably a mistake."""


class NetworkWarning(UserWarning):
    """The network can be used, but something about it is probably a mistake."""


class PrecisionWarning(UserWarning):
    """Rounding is seen in the result; the sentence says how much of it."""


class ConvergenceWarning(UserWarning):
    """An iteration stopped short of its tolerance; the result says how far it got."""


INSIDE = ("lapwing", "contextlib", "functools", "torch", "jaxtyping", "beartype")
"""Packages whose frames may lie between a warning and the line that led to it."""


def warn(sentence: str, category: type[Warning]) -> None:
    """Warns at the line of the user's that led here, however many calls of the library lie between.

    Example:
        >>> import pytest
        >>> with pytest.warns(ConvergenceWarning, match="steps"):
        ...     warn("ended after 2 steps. Try a larger steps=", ConvergenceWarning)
    """
    frame = inspect.currentframe()
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in INSIDE:
        frame = frame.f_back
        level = level + 1
    warnings.warn(sentence, category, stacklevel=level)


ELSEWHERE = re.compile(
    r"[\s,.;:]*\b(?:otherwise,?\s+)?(?:please,?|you can(?: also)?|feel free to)\s+(?:file|open|report)\b.*",
    re.IGNORECASE,
)
"""Where an error of PyTorch's begins to ask for an issue to be filed there."""


def reason_of(error: BaseException) -> str:
    """The first line of what an exception says, without a request to tell others: what stopped here has another way.

    Example:
        >>> reason_of(RuntimeError("vmap over torch.allclose isn't supported yet. Please file an issue at ..."))
        "vmap over torch.allclose isn't supported yet"
        >>> reason_of(RuntimeError())
        'RuntimeError'
    """
    first = str(error).strip().partition("\n")[0]
    return ELSEWHERE.sub("", first).strip() or type(error).__name__


def check_option(name: str, value: object, options: tuple[object, ...]) -> None:
    """Refuses an option that is not one of those there are.

    Raises:
        ConfigError: Naming the options.

    Example:
        >>> check_option("view", "weights", ("auto", "weights"))
    """
    if value not in options:
        known = ", ".join(map(repr, options))
        raise ConfigError(f"{name}= to be one of {known}", repr(value), f"{name}={options[0]!r}")


def check_kind(name: str, value: object, kinds: tuple[type, ...], hint: str) -> None:
    """Refuses an argument of another kind, a class in place of its instance included.

    Raises:
        ConfigError: Naming the kinds.

    Example:
        >>> check_kind("prior", 1.0, (float,), "1.0")
    """
    if isinstance(value, type) or not isinstance(value, kinds):
        known = ", ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        shown = " ".join(repr(value).split())
        shown = f"{type(value).__name__} {shown}" if len(shown) <= 40 else f"a {type(value).__name__}"
        got = f"the class {value.__name__}" if isinstance(value, type) else shown
        wanted = f"one of {known}" if len(kinds) > 1 else f"of type {known}"
        raise ConfigError(f"{name} to be {wanted}", got, hint)


def check_count(name: str, value: object, least: int = 1, *, usual: int | None = None) -> None:
    """Refuses what is no whole number, and a count below the least there may be.

    Args:
        name: The option.
        value: What came.
        least: The least there may be.
        usual: What to try; ``None`` for the least.

    Raises:
        ConfigError: Naming that.

    Example:
        >>> check_count("samples", 32, least=2)
    """
    hint = f"{name}={least if usual is None else usual}"
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise ConfigError(f"{name} to be a whole number, at least {least}", f"{value!r:.40}", hint)
    if value < least:
        raise ConfigError(f"{name} of at least {least}", f"{value}", hint)


def finite_evidence(value: float, what: str = "log evidence") -> float:
    """The value of an evidence or a bound, which prior and noise are chosen by.

    Args:
        value: Its value, nats.
        what: What it is of.

    Raises:
        NumericalError: If it is not finite.

    Example:
        >>> finite_evidence(-2.5)
        -2.5
    """
    if not math.isfinite(value):
        raise NumericalError(
            f"a finite {what}",
            f"{value:g} nats",
            "inputs and targets of size 1, float64, or a network and a noise precision nearer to the data",
        )
    return value


def is_number(value: object) -> bool:
    """Whether a value is a real number; ``True`` and ``False`` are none.

    Example:
        >>> is_number(1.5), is_number(True), is_number("1.5")
        (True, False, False)
    """
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_positive(name: str, value: Any, usual: str = "1e-6") -> None:
    """Refuses what is no positive number, NaN and booleans included.

    Args:
        name: The option.
        value: What came.
        usual: What to try.

    Raises:
        ConfigError: Naming it.

    Example:
        >>> check_positive("rtol", 1e-6)
    """
    if not (is_number(value) and float(value) > 0):
        raise ConfigError(f"a positive {name}", f"{value!r:.40}", f"{name}={usual}")


def check_fraction(name: str, value: Any, hint: str, *, zero: bool = False) -> None:
    """Refuses what is no number between 0 and 1, or below 1 and at least 0.

    Args:
        name: The option.
        value: What came.
        hint: What to try.
        zero: Whether 0 itself is allowed.

    Raises:
        ConfigError: Naming it.

    Example:
        >>> check_fraction("rtol", 0.1, "rtol=1e-6")
    """
    if not (is_number(value) and (0 < float(value) < 1 or (zero and value == 0))):
        expected = f"{name} from 0 and below 1" if zero else f"{name} between 0 and 1"
        raise ConfigError(expected, f"{name}={value!r:.40}", hint)


def check_bytes(what: str, needed: int, most: int, got: str, hint: str) -> None:
    """Refuses what would need more memory than it may.

    Args:
        what: What would be allocated.
        needed: Bytes it needs.
        most: Bytes it may need.
        got: What it consists of, up to the number of bytes: "10 rows, which need".
        hint: What to try.

    Raises:
        TooLargeError: Naming both numbers; nothing was allocated.

    Example:
        >>> check_bytes("a matrix", 800, 2**20, "one of 10 x 10, which needs", "fewer rows")
    """
    if needed > most:
        raise TooLargeError(f"{what} of at most {most:,} bytes", f"{got} {needed:,} bytes", hint)


def precisions_of(whose: str, given: object, hint: str) -> Tensor:
    """One precision or several, as float64 on the CPU.

    Args:
        whose: What they are the precisions of.
        given: What came.
        hint: What to try.

    Raises:
        ConfigError: If one is not a positive finite number; a boolean is none.

    Example:
        >>> precisions_of("noise", (1, 4), "Gaussian(1.0)").tolist()
        [1.0, 4.0]
    """
    expected = f"positive finite {whose} precisions, one number or a vector"
    if has_booleans(given):
        raise ConfigError(expected, f"{given!r:.40}", hint)
    try:
        values = torch.as_tensor(given, dtype=torch.float64, device="cpu").detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:  # what torch raises for strings, None, and ragged tuples
        raise ConfigError(expected, f"{given!r:.40}", hint) from error
    bad = values[~((values > 0) & torch.isfinite(values))]
    if bad.numel() or not values.numel() or values.ndim > 1:
        raise ConfigError(expected, f"{bad[0].item():g}" if bad.numel() else f"shape {list(values.shape)}", hint)
    return values


def has_booleans(given: object) -> bool:
    """Whether what came in place of numbers is a boolean, or several values with one among them.

    Example:
        >>> has_booleans(True), has_booleans((1.0, False)), has_booleans(torch.ones(2, dtype=torch.bool))
        (True, True, True)
        >>> has_booleans((1.0, 2.0))
        False
    """
    if isinstance(given, Tensor):
        return given.dtype == torch.bool
    if isinstance(given, list | tuple):
        return any(map(has_booleans, given))
    return isinstance(given, bool | np.bool_) or (isinstance(given, np.ndarray) and given.dtype == np.bool_)


def check_optimiser(optimiser: object, hint: str) -> None:
    """Refuses what does not make an optimiser: a name, or an optimiser that is made already.

    Raises:
        ConfigError: Naming what does.

    Example:
        >>> check_optimiser(lambda parameters: None, "optimiser=torch.optim.Adam")
    """
    if not callable(optimiser):
        raise ConfigError(
            "optimiser= to be a callable that takes parameters and returns an optimiser",
            f"{type(optimiser).__name__} {optimiser!r:.40}",
            hint,
        )


def describe(element: object) -> str:
    """A short name for what came in place of data, with keys or shapes."""
    if isinstance(element, Mapping):
        return f"a mapping with keys {sorted(map(str, element))}"
    if isinstance(element, Tensor | np.ndarray):
        kind = "tensor" if isinstance(element, Tensor) else "NumPy array"
        return f"a {kind} of shape {list(element.shape)}, {str(element.dtype).removeprefix('torch.')}"
    if isinstance(element, list | tuple):
        first = [type(part).__name__ for part in element[:5]] + ["..."] * (len(element) > 5)
        return f"a {type(element).__name__} of {len(element)}: {', '.join(first)}"
    return f"a {type(element).__name__}"


def shortly(value: object) -> str:
    """A choice as a ``repr`` shows it: numbers to six digits, and of many the first few.

    Example:
        >>> shortly(999999999999.9998), shortly((0.1 + 0.2, 2.0)), shortly(True)
        ('1e+12', '(0.3, 2)', 'True')
    """
    if isinstance(value, tuple) and all(isinstance(each, float) for each in value):
        shown = [f"{each:.6g}" for each in value[:SHOWN]]
        more = [f"... {len(value) - SHOWN} more"] if len(value) > SHOWN else []
        return f"({', '.join(shown + more)})"
    return f"{value:.6g}" if isinstance(value, float) else f"{value}"


SHOWN = 6
"""Numbers of a tuple that are shown."""
