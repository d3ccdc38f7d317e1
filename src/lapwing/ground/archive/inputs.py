"""What a network is called with, as JSON beside which the tensors lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lapwing.ground.archive.tensors import Json, Tensors
from lapwing.ground.errors import DataError, UnsupportedError

DEEPEST = 64
"""Tuples, lists and dicts within each other, at most."""


def inputs_state(inputs: Any, name: str, tensors: Tensors) -> Json:
    """A network's inputs: tensors, and plain values beside them, in tuples, lists and dicts.

    Raises:
        UnsupportedError: If there is anything else among them; it would take pickle to keep it.
    """
    if isinstance(inputs, Tensor):
        return tensors.put(name, inputs)
    if isinstance(inputs, Mapping) and all(type(key) is str for key in inputs):
        parts = {key: inputs_state(part, f"{name}.{i}", tensors) for i, (key, part) in enumerate(inputs.items())}
        return {"mapping": parts}
    if type(inputs) in (tuple, list):
        return {type(inputs).__name__: [inputs_state(part, f"{name}.{i}", tensors) for i, part in enumerate(inputs)]}
    if type(inputs) in (type(None), bool, int, float, str):
        return {"value": inputs}
    raise UnsupportedError(
        "training inputs made of tensors, numbers, strings, None, and tuples, lists and dicts of these",
        f"a {type(inputs).__name__} at {name}",
        "Full(view='weights'), KFAC() or Diagonal(), which keep no inputs",
    )


def inputs_from(spec: Any, tensors: Tensors, device: torch.device | str, depth: int = 0) -> Any:
    """The inputs that gave a spec.

    Raises:
        DataError: If there are none that give it.
    """
    if depth > DEEPEST:
        raise DataError(f"inputs of at most {DEEPEST} levels", "more", "saving it again")
    match spec:
        case {"mapping": dict() as parts}:
            return {key: inputs_from(part, tensors, device, depth + 1) for key, part in parts.items()}
        case {"tuple": list() as parts}:
            return tuple([inputs_from(part, tensors, device, depth + 1) for part in parts])
        case {"list": list() as parts}:
            return [inputs_from(part, tensors, device, depth + 1) for part in parts]
        case {"value": None | bool() | int() | float() | str() as value}:
            return value
        case _:
            return tensors.get(spec, device)
