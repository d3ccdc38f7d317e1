"""A module as it was found: alone with it while it is called, and whether it was written to since."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import chain

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

ALONE = threading.RLock()
"""Held while a module is called or looked at, or columns are pushed forward: `functional_call` exchanges the module's
tensors meanwhile, and `jvp` and `sdpa_kernel` count and choose for the whole process, so that threads take turns."""

WORDS = {1: torch.int8, 2: torch.int16}
"""Integers of one number's size; larger numbers are read as several of four bytes."""

PIECE = 2**16
"""Words that are weighted together: they stay in the cache."""


def state_of(module: nn.Module) -> tuple[int, ...]:
    """Where a module's tensors lie, and how often they were written to.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> before = state_of(layer)
        >>> _ = nn.init.zeros_(layer.bias)
        >>> state_of(layer) == before
        False
    """
    with ALONE:
        held = list(chain(module.parameters(), module.buffers()))
        versions = [0 if value.is_inference() else value._version for value in held]
        return (*(value.data_ptr() for value in held), *versions)


def digest_of(module: nn.Module) -> int:
    """One number of all bits of a module's tensors: a sum of whole numbers, the same in any order of summation.

    It sees what was written past autograd, such as ``weight.data.neg_()``, which leaves norms as they are.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> before = digest_of(layer)
        >>> _ = layer.weight.data.neg_()
        >>> digest_of(layer) == before
        False

    Cost:
        The tensors are read once.
    """
    with ALONE:
        pieces = [piece for words in _words(module) for piece in words.split(PIECE)]
        if not pieces:
            return 0
        weights = _weights(max(map(len, pieces)))
        on = {device: weights.to(device) for device in {piece.device for piece in pieces}}
        sums = [(piece * on[piece.device][: len(piece)]).sum().to(pieces[0].device) for piece in pieces]
        return int((torch.stack(sums) * _weights(len(sums)).to(sums[0])).sum())


def _words(module: nn.Module) -> Iterator[Int[Tensor, " w"]]:
    """The bits of a module's tensors as whole numbers, those of small tensors together."""
    small: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for value in chain(module.parameters(), module.buffers()):
        words = value.detach().reshape(-1).contiguous().view(WORDS.get(value.itemsize, torch.int32))
        if len(words) >= PIECE:
            yield words
        elif len(words):
            small.setdefault((words.device, words.dtype), []).append(words)
    yield from map(torch.cat, small.values())


def _weights(number: int) -> Int[Tensor, " w"]:
    """The same random numbers every time; PyTorch's own are refused where a function is being vectorised."""
    return torch.from_numpy(np.random.default_rng(0).integers(-(2**62), 2**62, number))
