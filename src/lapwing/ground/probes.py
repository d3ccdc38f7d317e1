"""The only source of randomness: probes drawn once, from a generator, at the edge of a computation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lapwing.ground.errors import check_count, check_kind
from lapwing.ground.precision import has_double

LARGE = 1e15
"""Poisson counts of larger means are drawn as normal ones: their skewness, below 1e-7, is what that leaves out."""


def device_of(generator: torch.Generator | None) -> torch.device:
    """Where a source of randomness draws: on the CPU without one.

    Raises:
        ConfigError: If it is none, such as a seed.

    Example:
        >>> device_of(None)
        device(type='cpu')
    """
    if generator is None:
        return torch.device("cpu")
    check_kind("generator=", generator, (torch.Generator,), "torch.Generator().manual_seed(0)")
    return generator.device


def check_draws(samples: int, generator: torch.Generator | None) -> None:
    """Refuses, before anything is computed, fewer draws than one and what is no source of randomness.

    Raises:
        ConfigError: Naming it.
    """
    check_count("samples", samples)
    device_of(generator)


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
    device = device_of(generator)
    in_full = device.type == "cpu" or has_double(device)
    dtype = like.dtype if in_full else torch.float32
    return torch.randn(list(shape), generator=generator, device=device, dtype=dtype).to(like)


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
    signs = torch.randint(0, 2, list(shape), generator=generator, device=device_of(generator)).to(like.device)
    return signs.to(like.dtype).mul_(2).sub_(1)


def uniform(shape: Sequence[int], *, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Probes uniform on (0, 1), made from normal ones so that a seed means the same on every device.

    Example:
        >>> bool((uniform([4], like=torch.zeros(1)) < 1).all())
        True
    """
    return torch.special.ndtr(gaussian(shape, like=like, generator=generator))


def gamma(
    shape: Sequence[int], concentration: float, *, like: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Gamma numbers of mean 1 and variance ``1 / concentration``, by inversion of their distribution function.

    Args:
        shape: Shape of the result.
        concentration: Shape parameter, positive.
        like: Tensor whose device and dtype they take.
        generator: Source of randomness; ``None`` draws from PyTorch's global one.

    Cost: two microseconds a number, on the CPU.

    Example:
        >>> bool((gamma([4], 2.0, like=torch.zeros(1)) > 0).all())
        True
    """
    from scipy.special import gammaincinv  # a tenth of a second to import

    levels = uniform(shape, like=torch.zeros((), dtype=torch.float64), generator=generator)
    return torch.from_numpy(gammaincinv(concentration, levels.numpy()) / concentration).to(like)


def permutation(size: int, *, generator: torch.Generator | None = None) -> list[int]:
    """The numbers below ``size`` in random order.

    Args:
        size: How many.
        generator: Source of randomness; ``None`` draws from PyTorch's global one.

    Example:
        >>> sorted(permutation(3))
        [0, 1, 2]
    """
    return torch.randperm(size, generator=generator, device=device_of(generator)).tolist()


def poisson(mean: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """Poisson counts of these means, drawn on the generator's device; normal ones where no whole number is that large.

    Those of half precision are drawn in float32, and rounded.

    Args:
        mean: Of each count, not negative.
        generator: Source of randomness; ``None`` draws from PyTorch's global one.

    Example:
        >>> poisson(torch.zeros(2)).tolist()
        [0.0, 0.0]
    """
    here = mean.to(device_of(generator), torch.promote_types(mean.dtype, torch.float32))
    counts = torch.poisson(here.clamp(max=LARGE), generator=generator)
    large = here > LARGE
    if bool(large.any()):
        normal = gaussian(mean.shape, like=here, generator=generator)
        rounded = torch.where(here.isinf(), here, (here + here.sqrt() * normal).round())
        counts = torch.where(large, rounded, counts)
    return counts.to(mean)


def seed_from(generator: torch.Generator | int | None) -> int:
    """A seed for what is drawn again and again: an int is one itself, a generator is asked for one.

    Args:
        generator: Source of randomness; ``None`` draws from PyTorch's global one.

    Raises:
        ConfigError: If it is none.

    Example:
        >>> seed_from(3)
        3
    """
    if isinstance(generator, int):
        check_count("generator", generator, 0)
        return generator
    return int(torch.randint(2**31 - 1, (1,), generator=generator, device=device_of(generator)))


def generator_of(generator: torch.Generator | int | None) -> torch.Generator | None:
    """The source of randomness that is meant: an int makes a generator.

    Args:
        generator: A generator, a seed, or ``None`` for PyTorch's global one.

    Raises:
        ConfigError: If it is none of these.

    Example:
        >>> generator_of(3).initial_seed()
        3
    """
    if isinstance(generator, int):
        check_count("generator", generator, 0)
        return torch.Generator().manual_seed(generator)
    device_of(generator)
    return generator
