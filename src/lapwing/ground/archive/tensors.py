"""Tensors of one file by name."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from lapwing.ground.errors import DataError

Json: TypeAlias = dict[str, Any]
"""What JSON calls an object."""


@final
@dataclass(frozen=True)
class Tensors:
    """Tensors of one file by name, each contiguous on the CPU.

    A tensor whose axes lie in another order in memory (channels last) comes back in that order: kernels then take the
    same path and give the same bits.

    Example:
        >>> tensors = Tensors()
        >>> spec = tensors.put("w", torch.tensor([[1.0, 2.0], [3.0, 4.0]]).mT)
        >>> spec, tensors.get(spec).tolist()
        ({'tensor': 'w', 'axes': [1, 0]}, [[1.0, 3.0], [2.0, 4.0]])
    """

    named: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def put(self, name: str, value: Tensor) -> Json:
        """Takes in a tensor; returns what the header needs to find it again."""
        axes = sorted(range(value.ndim), key=lambda axis: -value.stride(axis))
        self.named[name] = value.detach().permute(axes).contiguous().cpu()
        return {"tensor": name} if axes == sorted(axes) else {"tensor": name, "axes": axes}

    def get(self, spec: Any, device: torch.device | str = "cpu") -> Tensor:
        """The tensor that gave ``spec``, on a device.

        Raises:
            DataError: If there is none.
        """
        name = spec.get("tensor") if isinstance(spec, dict) else None
        if not isinstance(name, str) or name not in self.named:
            raise DataError("the name of a tensor of the file", f"{spec!r:.60}", "saving it again")
        value, axes = self.named[name].to(device), spec.get("axes")
        if spec.get("dtype") == "int64":
            value = value.long()
        if axes is None:
            return value
        if not isinstance(axes, list) or not all(type(axis) is int for axis in axes):
            raise DataError("axes in some order", f"{axes!r:.60}", "saving it again")
        if sorted(axes) != list(range(value.ndim)):
            raise DataError(f"{value.ndim} axes in some order", f"{axes!r:.60}", "saving it again")
        return value.permute([axes.index(axis) for axis in range(len(axes))])

    @property
    def digest(self) -> str:
        """SHA-256 of names, shapes, dtypes and values."""
        total = hashlib.sha256()
        for name, value in sorted(self.named.items()):
            total.update(f"{name}{list(value.shape)}{value.dtype}".encode())
            total.update(value.reshape(-1).view(torch.uint8).numpy().data)
        return total.hexdigest()

    @property
    def unshared(self) -> dict[str, Tensor]:
        """The same tensors, no two in one storage, as safetensors demands."""
        seen: set[int] = set()
        result: dict[str, Tensor] = {}
        for name, value in self.named.items():
            pointer = value.untyped_storage().data_ptr()
            result[name] = value.clone() if pointer in seen else value
            seen.add(pointer)
        return result
