"""The modes of PyTorch that a user may be in, and that would change what is computed: set aside, then back."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch

from lapwing.ground.device import default_device_aside


@contextmanager
def undisturbed() -> Generator[None]:
    """Neither inference mode, in which nothing is differentiated, nor autocast, which rounds, nor a default device.

    Also a decorator. The user's network and loader have the default device of the user.

    Example:
        >>> with torch.inference_mode(), torch.autocast("cpu"), undisturbed():
        ...     torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        (False, False)
    """
    with (
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
        default_device_aside(),
    ):
        yield


@contextmanager
def predicting() -> Generator[None]:
    """The same, but gradients are followed where the user has them followed.

    Example:
        >>> with torch.no_grad(), predicting():
        ...     torch.is_grad_enabled()
        False
    """
    followed = torch.is_grad_enabled()
    with undisturbed(), torch.set_grad_enabled(followed):
        yield
