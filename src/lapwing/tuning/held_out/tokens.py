"""Mixing sequences of tokens where they become numbers: behind the network's embeddings."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn

from lapwing.ground.data.inputs import Inputs, count, over_tensors, take
from lapwing.ground.data.sources import Data
from lapwing.jacobian.network.serving import transformed
from lapwing.posteriors import Posterior
from lapwing.tuning.held_out.examples import Key, entries

FEW = 8
"""Examples by which it is seen which inputs an embedding reads."""


@final
class TokenPairs:
    """Puts the tokens of two examples side by side, and mixes them behind an embedding while it is ``open``.

    ``share * E[one] + (1 - share) * E[other]`` replaces what an embedding E returns for tokens. Inputs of
    floating-point numbers are mixed as they are; others, such as masks, are those of ``one``, which has the larger
    share and the label. The module is the caller's, and meanwhile reads ordinary tokens as ever; a thread sees the
    pairs that it passed itself.

    Args:
        module: The network.
        axes: Axes of each entry of its inputs that an embedding reads, by the key of the entry.
        readers: Embeddings that read one of these entries and nothing else, by its key.
    """

    def __init__(self, module: nn.Module, axes: Mapping[Key, int], readers: Mapping[nn.Embedding, Key]) -> None:
        self.module = module
        self.axes = dict(axes)
        self.readers = dict(readers)
        self.share = 1.0
        self.now = threading.local()

    def __call__(self, one: Inputs, other: Inputs, share: float) -> Inputs:
        """Pairs that the network reads as mixtures of this share, until another is asked for."""
        self.share = share
        others = entries(other)
        mixed = {key: self._paired(key, value, others[key]) for key, value in entries(one).items()}
        return with_entries(one, mixed)

    def _paired(self, key: Key, one: Any, other: Any) -> Any:
        if key in self.axes:
            return torch.stack([one, other], 1)
        if isinstance(one, Tensor) and one.is_floating_point():
            return self.share * one + (1 - self.share) * other
        return one

    @contextmanager
    def open(self) -> Generator[TokenPairs]:
        """Hooks on the network and its embeddings, removed at the end, whatever happens."""
        handles = [self.module.register_forward_pre_hook(self._first_of_pairs, with_kwargs=True)]
        for table in embeddings(self.module):
            handles.append(table.register_forward_pre_hook(self._both))
            handles.append(table.register_forward_hook(self._mixture))
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()

    def _first_of_pairs(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The first example of each pair, which the network reads; both are noted for its embeddings."""
        pairs: dict[Key, tuple[Tensor, Tensor]] = {}

        def first(key: Key, value: Any) -> Any:
            if key not in self.axes or not isinstance(value, Tensor) or value.ndim != self.axes[key] + 1:
                return value
            one = value[:, 0].contiguous()
            other = value[:, 1].contiguous()
            pairs[key] = (one, other)
            return one

        self.now.pairs = pairs
        positional = tuple(first(place, value) for place, value in enumerate(args))
        return positional, {name: first(name, value) for name, value in kwargs.items()}

    def _both(self, module: nn.Embedding, args: tuple[Tensor]) -> tuple[Tensor] | None:
        other = self._partner(module, args[0])
        return None if other is None else (torch.stack([args[0], other], 1),)

    def _mixture(self, module: nn.Embedding, args: tuple[Tensor], output: Tensor) -> Tensor | None:
        both = args[0]
        if both.ndim < 2 or both.shape[1] != 2 or self._partner(module, both[:, 0]) is None:
            return None
        return self.share * output[:, 0] + (1 - self.share) * output[:, 1]

    def _partner(self, module: nn.Embedding, tokens: Tensor) -> Tensor | None:
        """What is beside these tokens, if they are the first of pairs; not where they were cut or moved before.

        Tokens that ``torch.func`` vectorises over cannot be compared: there counts what the embedding has always read.
        """
        pairs: dict[Key, tuple[Tensor, Tensor]] = getattr(self.now, "pairs", {})
        if not transformed():
            return next((other for one, other in pairs.values() if same_tensor(one, tokens)), None)
        key = self.readers.get(module)
        if key not in pairs:
            return None
        one, other = pairs[key]
        return other if one.shape == tokens.shape else None


def pairs_of_tokens(posterior: Posterior, data: Data) -> TokenPairs | None:
    """Pairs for a network some of whose inputs, of one shape throughout, an embedding reads as they are.

    ``None`` for others.

    Args:
        posterior: Has the network.
        data: The examples to be mixed.

    Cost:
        A pass over the data, which only reads them, and a forward pass of a few examples.
    """
    module = posterior.network.module
    if not embeddings(module) or not of_one_shape(data):
        return None
    few = take(next(iter(data)).inputs, slice(0, FEW))
    read = tokens_read(posterior, few)
    axes: dict[Key, int] = {}
    readers: dict[nn.Embedding, Key] = {}
    for key, value in entries(few).items():
        for table, given in read.items():
            own = [same_tensor(value, tokens) for tokens in given]
            if any(own):
                axes[key] = value.ndim
            if all(own):
                readers.setdefault(table, key)
    return TokenPairs(module, axes, readers) if axes else None


def tokens_read(posterior: Posterior, inputs: Inputs) -> dict[nn.Embedding, list[Tensor]]:
    """What each embedding of a network is given when it reads some inputs, if it is given anything."""
    read: dict[nn.Embedding, list[Tensor]] = {}

    def note(module: nn.Embedding, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor):
            read.setdefault(module, []).append(args[0])

    handles = [table.register_forward_pre_hook(note) for table in embeddings(posterior.network.module)]
    try:
        posterior.model.outputs(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return read


def embeddings(module: nn.Module) -> list[nn.Embedding]:
    """The embeddings of a network."""
    return [part for part in module.modules() if isinstance(part, nn.Embedding)]


def same_tensor(one: Any, other: Tensor) -> bool:
    """Whether two tensors have the same shape and the same values."""
    alike = isinstance(one, Tensor) and one.shape == other.shape and one.dtype == other.dtype
    return alike and torch.equal(one, other)


def of_one_shape(data: Data) -> bool:
    """Whether all examples have inputs of the same names and shapes."""
    return len({shapes(batch.inputs) for batch in data}) == 1


def shapes(inputs: Inputs) -> tuple[tuple[Key, tuple[int, ...]], ...]:
    """The name and the shape of each entry for one example."""
    examples = count(inputs)
    found: list[tuple[Key, tuple[int, ...]]] = []
    for key, value in entries(inputs).items():
        if isinstance(value, Tensor):
            by_example = value.ndim > 0 and len(value) == examples
            found.append((key, tuple(value.shape[1:] if by_example else value.shape)))
    return tuple(found)


def with_entries(inputs: Inputs, values: Mapping[Key, Any]) -> Inputs:
    """Inputs held as these are, with other entries."""
    keys = iter(values)
    return over_tensors(lambda _: values[next(keys)], inputs)
