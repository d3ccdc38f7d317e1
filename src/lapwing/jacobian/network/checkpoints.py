"""Checkpointed parts of a network, which compute themselves again in a backward pass, called as they are."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch.utils.checkpoint as library


class Direct:
    """In place of the reentrant ``CheckpointFunction``: the function itself."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        """What the function gives; ``preserve`` is for random numbers of its second run."""
        return function(*args)


def directly(
    function: Callable[..., Any], preserve: bool, context_fn: Callable[[], tuple[Any, Any]], *others: Any, **kwargs: Any
) -> Generator[None]:
    """In place of the generator around a checkpointed call: the context of its first run, and nothing else."""
    first, _ = context_fn()
    with first:
        yield


INSTEAD: dict[str, Any] = {"CheckpointFunction": Direct, "_checkpoint_without_reentrant_generator": directly}
"""What ``torch.utils.checkpoint.checkpoint`` looks up, reentrant and not, and what it shall find."""


@contextmanager
def without_checkpoints() -> Generator[None]:
    """What ``torch.utils.checkpoint`` wraps is called as it is, so that its derivatives are those of what it computes.

    A reentrant checkpoint hides the weights inside it from every derivative but ``backward()``: they would have no
    Jacobian. One that is not reentrant computes again with the weights that the module has when the backward pass runs:
    its own, where those the outputs were computed with were others. Called directly, both give the same numbers and
    keep their activations; so does what another thread computes meanwhile.

    Example:
        >>> import torch
        >>> from torch.utils.checkpoint import checkpoint
        >>> layer, x = torch.nn.Linear(2, 1), torch.ones(3, 2)
        >>> with without_checkpoints():
        ...     y = checkpoint(layer, x, use_reentrant=True)
        >>> torch.autograd.grad(y.sum(), layer.bias)
        (tensor([3.]),)
    """
    before = {name: getattr(library, name) for name in INSTEAD if hasattr(library, name)}
    for name in before:
        setattr(library, name, INSTEAD[name])
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(library, name, original)
