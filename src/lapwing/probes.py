"""The only source of randomness: probes drawn once, from a generator, at the edge of a computation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def gaussian(
    shape: Sequence[int],
    *,
    like: Tensor,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Standard normal probes with the device and dtype of ``like``.

    The draw happens on the generator's device (the CPU without one) and is then moved, so that one seed gives the
    same numbers on every device.

    Args:
        shape: Shape of the result.
        like: Tensor whose device and dtype the probes take.
        generator: Source of randomness; ``None`` draws from PyTorch's global one.

    Returns:
        Tensor of ``shape``.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> gaussian([2, 3], like=torch.zeros(1), generator=g).shape
        torch.Size([2, 3])
    """
    device = generator.device if generator is not None else torch.device("cpu")
    return torch.randn(list(shape), generator=generator, device=device, dtype=like.dtype).to(like.device)


def rademacher(
    shape: Sequence[int],
    *,
    like: Tensor,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Probes of independent signs (+1 or -1), otherwise as ``gaussian``.

    Example:
        >>> rademacher([4], like=torch.zeros(1)).abs().tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    device = generator.device if generator is not None else torch.device("cpu")
    signs = torch.randint(0, 2, list(shape), generator=generator, device=device).to(like.device)
    return signs.to(like.dtype).mul_(2).sub_(1)


def permutation(size: int, *, generator: torch.Generator | None = None) -> list[int]:
    """The numbers below ``size`` in random order.

    Args:
        size: How many.
        generator: Source of randomness; ``None`` draws from PyTorch's global one.

    Example:
        >>> sorted(permutation(3))
        [0, 1, 2]
    """
    device = generator.device if generator is not None else torch.device("cpu")
    return torch.randperm(size, generator=generator, device=device).tolist()
