"""The default device: the user's own inside their network and loader, the CPU inside this library."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

import torch

CPU = torch.device("cpu")

CACHED = 2**22
"""Bytes that stay in a CPU's cache (4 MiB): pieces larger than that take several times as long."""

USERS: ContextVar[torch.device] = ContextVar("the user's default device")
"""That of the user, as long as ours is in its place."""


@contextmanager
def default_device_aside() -> Generator[None]:
    """Tensors made without a device are on the CPU, whatever ``torch.set_default_device`` said.

    Example:
        >>> with torch.device("meta"), default_device_aside():
        ...     torch.zeros(2).device
        device(type='cpu')
    """
    users = torch.get_default_device()
    if users == CPU:
        yield
        return
    token = USERS.set(users)
    try:
        with CPU:
            yield
    finally:
        USERS.reset(token)


@contextmanager
def users_default_device() -> Generator[None]:
    """The default device as the user has it, to call code of theirs.

    Example:
        >>> with torch.device("meta"), default_device_aside(), users_default_device():
        ...     torch.zeros(2).device
        device(type='meta')
    """
    users = USERS.get(None)
    with nullcontext() if users is None else users:
        yield
