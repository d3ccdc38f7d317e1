"""Structured operators as a tree of plain JSON whose leaves name tensors, and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lapwing.ground.archive import Json, Tensors
from lapwing.ground.errors import UnsupportedError
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, Kronecker, LowRank, Operator, Structured, Sum
from lapwing.store.families import records


def operator_state(operator: Operator, name: str, tensors: Tensors) -> Json:
    """The tree of an operator; its tensors go to ``tensors`` under names that start with ``name``.

    Raises:
        UnsupportedError: If a part of it is no structured operator of ``lapwing.linalg``.

    Example:
        >>> operator_state(Diagonal(torch.ones(2)), "curvature", Tensors())
        {'kind': 'Diagonal', 'values': {'tensor': 'curvature.values'}}
    """
    kind = {"kind": type(operator).__name__}
    match operator:
        case Diagonal():
            return kind | {"values": tensors.put(f"{name}.values", operator.values)}
        case Dense():
            return kind | {
                "matrix": tensors.put(f"{name}.matrix", operator.matrix),
                "scale": scalar_state(operator.scale, f"{name}.scale", tensors),
                "shift": scalar_state(operator.shift, f"{name}.shift", tensors),
            }
        case Kronecker():
            return kind | {
                "left": tensors.put(f"{name}.left", operator.left),
                "right": tensors.put(f"{name}.right", operator.right),
                "scale": scalar_state(operator.scale, f"{name}.scale", tensors),
                "shift": scalar_state(operator.shift, f"{name}.shift", tensors),
            }
        case LowRank():
            base = None if operator.base is None else operator_state(operator.base, f"{name}.base", tensors)
            return kind | {"factor": tensors.put(f"{name}.factor", operator.factor), "base": base}
        case BlockDiagonal():
            blocks = [operator_state(b, f"{name}.{i}", tensors) for i, b in enumerate(operator.blocks)]
            index = None
            if operator.index is not None:
                index = [index_state(p, f"{name}.{i}.index", tensors) for i, p in enumerate(operator.index)]
            return kind | {"blocks": blocks, "index": index}
        case Sum():
            return kind | {"terms": [operator_state(t, f"{name}.{i}", tensors) for i, t in enumerate(operator.terms)]}
        case _:
            raise UnsupportedError(
                "operators made of Dense, Diagonal, LowRank, Kronecker, BlockDiagonal and Sum",
                repr(operator),
                "structure KFAC(), Diagonal() or Full()",
            )


def operator_from(spec: Any, tensors: Tensors, device: torch.device) -> Structured:
    """The operator that gave a tree, on a device; its factorisations are computed again when first asked for.

    Raises:
        DataError: If no operator of this lapwing gives it.
    """
    return records(tensors, device).read(Structured, spec, "operator")


def scalar_state(value: float | Tensor, name: str, tensors: Tensors) -> float | Json:
    """A number: itself, or a reference where it is a tensor, whose dtype matters."""
    return tensors.put(name, value) if isinstance(value, Tensor) else float(value)


def index_state(positions: Tensor, name: str, tensors: Tensors) -> Json:
    """Positions in a flat vector, in half the bytes where they fit."""
    fits = not positions.numel() or int(positions.max()) < 2**31
    return tensors.put(name, positions.int()) | {"dtype": "int64"} if fits else tensors.put(name, positions)
