"""Fixtures every test may use. Import nothing of lapwing here: its shape checker must be installed first."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

ELSEWHERE = tuple(Path(__file__).parent / name for name in ("benchmarks", "laws", "oracles", "studies"))
"""Tests of lines that their own tests cover too: counting them again takes time and finds nothing."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in ELSEWHERE):
            item.add_marker(pytest.mark.no_cover)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)


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
