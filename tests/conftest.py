"""Fixtures every test may use. Import nothing of lapwing here: its shape checker must be installed first."""

from __future__ import annotations

import gc
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch

ELSEWHERE = tuple(
    Path(__file__).parent / name
    for name in ("benchmarks", "demo", "laws", "oracles", "studies", "test_hugging_face.py")
)
"""Tests of lines that other tests cover too: counting them again takes time and finds nothing. More have the mark
``no_cover``."""

COUNTED = 10
"""Cases of one test whose lines are counted, spread over all: the others run too, but reach hardly a line more."""


FROZEN = set[str]()
"""Modules that were imported when the collector was last told to leave alone what there is."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.hasplugin("_cov"):
        mark_uncounted(items)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)


def mark_uncounted(items: list[pytest.Item]) -> None:
    """Mark the tests whose lines are not counted."""
    tests = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        for i, item in enumerate(cases):
            again = len(cases) > COUNTED and i * COUNTED // len(cases) == (i - 1) * COUNTED // len(cases)
            if again or any(item.path.is_relative_to(folder) for folder in ELSEWHERE):
                item.add_marker(pytest.mark.no_cover)


@pytest.fixture(autouse=True)
def imported_for_good() -> None:
    """What was imported before a test is not looked through in each of its collections of garbage: a tenth of a second
    each, of which a comparison makes one a method."""
    if len(sys.modules) > len(FROZEN):
        gc.collect()
        gc.freeze()
        FROZEN.update(sys.modules)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU, and the GPU where there is one."""
    return torch.device(request.param)


@pytest.fixture
def dtype() -> torch.dtype:
    """Double precision: laws are tested to rounding."""
    return torch.float64


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded source of randomness, on the CPU so that every device sees the same draws."""
    return torch.Generator().manual_seed(0)
