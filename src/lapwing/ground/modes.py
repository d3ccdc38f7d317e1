"""Modes of PyTorch around a call, which would make it fail or round, and have no effect inside."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def undisturbed() -> Generator[None]:
    """Neither inference mode, in which nothing is differentiated, nor autocast, which rounds; also a decorator.

    Example:
        >>> with torch.inference_mode(), torch.autocast("cpu"), undisturbed():
        ...     torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        (False, False)
    """
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield
