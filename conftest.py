"""What every test and doctest begins with: the type checker, which jaxtyping knows by name alone, and one seed."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read once, when torch loads: idle threads must not spin

import torch

import tests.checker


def pytest_runtest_setup() -> None:
    """Before each test and doctest."""
    tests.checker.begin()
    torch.manual_seed(0)
