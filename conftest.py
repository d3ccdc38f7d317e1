"""What every test and doctest begins with: the type checker, which jaxtyping knows by name alone, and one seed."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read once, when torch loads: idle threads must not spin

import pytest
import torch

import tests.checker

CUDA = torch.cuda.is_available()

gc.disable()  # until all modules are loaded: a million objects that stay


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Files of tests have no examples in their docstrings: they are not searched for any."""
    collectors = yield
    if file_path.name.startswith("test_"):
        return [collector for collector in collectors if type(collector) is pytest.Module]
    return collectors


def pytest_collection_finish() -> None:
    """What was loaded stays, and no collection of garbage looks through it again."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup() -> None:
    """Before each test and doctest."""
    tests.checker.begin()
    torch.default_generator.manual_seed(0)  # torch.manual_seed notes the whole stack where there is no CUDA
    if CUDA:
        torch.cuda.manual_seed_all(0)
