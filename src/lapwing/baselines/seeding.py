"""PyTorch's global source of randomness, by which layers drop in training: set for a while, then as it was."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from lapwing.jacobian.network.network import like_of


@contextmanager
def seeded(seed: int, module: nn.Module) -> Generator[None]:
    """The global source of the CPU and of a module's device set to a seed.

    Example:
        >>> module = nn.Dropout()
        >>> before = torch.get_rng_state()
        >>> with seeded(0, module):
        ...     _ = torch.rand(3)
        >>> torch.equal(torch.get_rng_state(), before)
        True
    """
    like = like_of(module)
    device = torch.device("cpu") if like is None else like.device
    if device.type == "cpu":
        with torch.random.fork_rng([]):
            torch.default_generator.manual_seed(seed)
            yield
        return
    here = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with torch.random.fork_rng([device], device_type=device.type), here:
        torch.default_generator.manual_seed(seed)
        torch.get_device_module(device).manual_seed(seed)
        yield
