"""Bytes of the tensors that a call makes: those alive at one time, and the largest; the same in every run."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Meter(TorchDispatchMode):
    """Counts each storage that an operation inside returns, from then until nothing refers to it.

    Attributes:
        live: Bytes now.
        most: Bytes at any one time.
        largest: Bytes of the largest.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.most = self.largest = 0
        self._known: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(value.untyped_storage()) for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)}
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                if id(storage) not in given and id(storage) not in self._known:
                    self._count(storage)
        return result

    def _count(self, storage: Any) -> None:
        key, size = id(storage), storage.nbytes()

        def gone(_: weakref.ref) -> None:
            self.live -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, gone)
        self.live += size
        self.most, self.largest = max(self.most, self.live), max(self.largest, size)
