"""A frozen result on another device, with all that is in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from lapwing.ground.shared import fields_of


@runtime_checkable
class Movable(Protocol):
    """What is more than its fields, and says itself what it is on another device."""

    def moved_by(self, mover: Mover) -> Any:
        """The same on the mover's device."""
        ...


@final
class Mover:
    """Moves results to a device: tensors, tuples, lists and mappings of them, and dataclasses field by field.

    What was one object in several places stays one. What holds no tensor stays as it is.

    Args:
        device: Where to.
        copy: Whether tensors that are there already are copied.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> Mover("meta")((Diagonal(torch.ones(3)), 2.0))[0].values.device
        device(type='meta')
    """

    def __init__(self, device: torch.device | str, *, copy: bool = False) -> None:
        self.device = torch.device(device)
        self.copy = copy
        self._moved = dict[int, tuple[Any, Any]]()
        """What was moved, by its identity, and what it became; it is kept, or another could take its place."""

    def __call__(self, value: Any) -> Any:
        """A value on the device.

        Args:
            value: The value.
        """
        known = self._moved.get(id(value))
        if known is None:
            known = value, self._there(value)
            self._moved[id(value)] = known
        return known[1]

    def _there(self, value: Any) -> Any:
        if isinstance(value, type):
            return value
        if isinstance(value, Tensor):
            return value.to(self.device, copy=self.copy)
        if isinstance(value, Movable):
            return value.moved_by(self)
        if type(value) in (tuple, list):
            parts = [self(part) for part in value]
            same = all(part is before for part, before in zip(parts, value, strict=True))
            return value if same else type(value)(parts)
        if isinstance(value, Mapping):
            return {key: self(part) for key, part in value.items()}
        if not is_dataclass(value):
            return value
        result: Any = value
        fields = fields_of(result)
        there = {name: self(part) for name, part in fields.items()}
        changed = {name: part for name, part in there.items() if part is not fields[name]}
        return replace(result, **changed) if changed else value
