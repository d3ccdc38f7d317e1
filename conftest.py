"""What every test and doctest begins with: the type checker, which jaxtyping knows by name alone, and one seed."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read once, when torch loads: idle threads must not spin

import torch

import tests.checker

CUDA = torch.cuda.is_available()

gc.disable()  # until all modules are loaded: a million objects that stay


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
