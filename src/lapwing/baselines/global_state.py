"""What PyTorch has one of for the whole process, set for a while: its source of randomness, its transformers."""

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


@contextmanager
def without_fast_path() -> Generator[None]:
    """Transformers as they are written: their fast path in eval mode leaves dropout out."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
