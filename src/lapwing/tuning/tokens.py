"""Mixing sequences of tokens where they become numbers: behind the network's embedding."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn

from lapwing.posteriors import Posterior


@final
class TokenPairs:
    """Puts the tokens of two examples side by side, and mixes them behind an embedding while it is ``open``.

    ``share * E[one] + (1 - share) * E[other]`` replaces what the embedding E returns. The module is the caller's, and
    meanwhile reads ordinary tokens as ever; a thread sees the pairs that it passed itself.

    Args:
        module: The network, whose one input is a tensor of integers.
        axes: Axes of that input.
        table: The embedding.
    """

    def __init__(self, module: nn.Module, axes: int, table: nn.Embedding) -> None:
        self.module, self.axes, self.table = module, axes, table
        self.share = 1.0
        self.now = threading.local()

    def __call__(self, one: Tensor, other: Tensor, share: float) -> Tensor:
        """Pairs that the network reads as mixtures of this share, until another is asked for."""
        self.share = share
        return torch.stack([one, other], 1)

    @contextmanager
    def open(self) -> Generator[TokenPairs]:
        """Hooks on the network and its embedding, removed at the end, whatever happens."""
        handles = [
            self.module.register_forward_pre_hook(self._first_of_pairs),
            self.table.register_forward_pre_hook(self._both),
            self.table.register_forward_hook(self._mixture),
        ]
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()

    def _first_of_pairs(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor] | None:
        paired = len(args) == 1 and isinstance(args[0], Tensor) and args[0].ndim == self.axes + 1
        self.now.other = args[0][:, 1] if paired else None
        return (args[0][:, 0],) if paired else None

    def _both(self, module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor] | None:
        return (torch.stack([args[0], self.now.other], 1),) if self._reads(args[0].shape) else None

    def _mixture(self, module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor | None:
        shape = args[0].shape
        if len(shape) != self.axes + 1 or not self._reads(torch.Size([shape[0], *shape[2:]])):
            return None
        return self.share * output[:, 0] + (1 - self.share) * output[:, 1]

    def _reads(self, shape: torch.Size) -> bool:
        """Whether tokens of this shape are the first of pairs."""
        other = getattr(self.now, "other", None)
        return other is not None and other.shape == shape


def pairs_of_tokens(posterior: Posterior) -> TokenPairs | None:
    """Pairs for a network that embeds its one input, integers of one shape throughout; ``None`` for others."""
    module = posterior.network.module
    table = next((part for part in module.modules() if isinstance(part, nn.Embedding)), None)
    if table is None or posterior.data is None:
        return None
    shapes = {_shape(batch.inputs) for batch in posterior.data}
    shape = shapes.pop()
    return None if shapes or shape is None else TokenPairs(module, 1 + len(shape), table)


def _shape(inputs: Any) -> torch.Size | None:
    """Shape of one example, if it is a tensor of integers."""
    integers = isinstance(inputs, Tensor) and not inputs.is_floating_point() and not inputs.is_complex()
    return inputs.shape[1:] if integers and inputs.dtype != torch.bool else None
