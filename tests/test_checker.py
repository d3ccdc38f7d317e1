"""The type checker of the tests still checks, at first; inner functions share a compiled check, with their like."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import jaxtyping
import pytest
import torch
from jaxtyping import Float, TypeCheckError, jaxtyped
from torch import Tensor

from tests.checker import CALLS, begin, checked


def made(columns: bool) -> Callable[[Tensor], Tensor]:
    if columns:

        @jaxtyped(typechecker=checked)
        def inner(x: Float[Tensor, "n k"]) -> Float[Tensor, " n"]:
            return x.sum(1)

    else:

        @jaxtyped(typechecker=checked)
        def inner(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
            return x if len(x) < 3 else x[1:]

    return inner


def test_functions_of_one_name_are_told_apart_by_their_annotations() -> None:
    for _ in range(2):
        assert made(True)(torch.ones(2, 3)).tolist() == [3.0, 3.0]
        assert made(False)(torch.ones(2)).tolist() == [1.0, 1.0]
        for columns, x in ((True, torch.ones(2)), (False, torch.ones(2, 3))):
            with pytest.raises(TypeCheckError):
                made(columns)(x)


def test_without_beartype_the_checker_loads_and_checks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """``scripts/gpu.sh`` runs tests on bare machines."""
    monkeypatch.setitem(sys.modules, "beartype", None)
    monkeypatch.setattr(jaxtyping, "jaxtyped", jaxtyping.jaxtyped)  # which the checker replaces
    loaded = runpy.run_path(str(Path(__file__).with_name("checker.py")))
    with pytest.raises(ImportError):
        loaded["checked"](lambda x: x)


def test_what_is_returned_is_checked_against_the_arguments() -> None:
    with pytest.raises(TypeCheckError):
        made(False)(torch.ones(4))


def test_the_first_calls_of_each_test_are_checked() -> None:
    inner = made(False)
    for _ in range(2):
        begin()
        for _ in range(CALLS):
            with pytest.raises(TypeCheckError):
                inner(torch.ones(4))
        assert inner(torch.ones(4)).tolist() == [1.0, 1.0, 1.0]


def test_so_are_inner_functions_that_are_made_anew() -> None:
    begin()
    for _ in range(CALLS):
        with pytest.raises(TypeCheckError):
            made(False)(torch.ones(4))
    assert made(False)(torch.ones(4)).tolist() == [1.0, 1.0, 1.0]


def test_whatever_else_jaxtyping_is_asked_for_is_its_own() -> None:
    with jaxtyped("context"):  # type: ignore[no-untyped-call]
        assert isinstance(torch.ones(2), Float[Tensor, " n"])
        assert not isinstance(torch.ones(3), Float[Tensor, " n"])
