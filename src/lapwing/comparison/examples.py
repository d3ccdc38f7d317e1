"""What is kept of single test examples, so that methods can be compared on the same ones; also as text in a file."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from lapwing.ground.data.inputs import bits
from lapwing.ground.errors import DataError
from lapwing.ground.precision import wide

KINDS = ("float32", "uint8", "int32")
"""Numbers there may be in a file."""


@final
@dataclass(frozen=True, eq=False)
class Examples:
    """Numbers of single test examples in one run.

    Args:
        run: What tells the run from others: the network, the data and the seed.
        targets: A checksum of all targets in the order in which they were read: only the same are compared in pairs.
        values: By name, on the CPU: ``nll``; of classes ``confidence`` and ``correct``; ``nll:NAME`` under a shift;
            ``familiar`` and ``foreign``, how strange inputs are; ``foreign_uncertainty``, of classes one minus the
            confidence; ``joint``, nats a label of each batch of labels, with the examples of the groups they are in,
            ``groups``.

    Example:
        >>> kept = Examples("0", 7, {"nll": torch.tensor([0.5, 0.25])})
        >>> Examples.read(kept.state(), "row 1").values["nll"]
        tensor([0.5000, 0.2500])
    """

    run: str
    targets: int
    values: Mapping[str, Tensor] = field(repr=False)

    @classmethod
    def of(cls, run: str, targets: int, values: Mapping[str, Tensor]) -> Examples:
        """What is kept of numbers wherever they are: float32, whole numbers as such."""
        kept = dict[str, Tensor]()
        for name, value in values.items():
            cpu = value.detach().cpu()
            kept[name] = cpu.float() if cpu.is_floating_point() else cpu
        return cls(run, targets, kept)

    def state(self) -> dict[str, Any]:
        """As JSON has it: the bits of each, compressed, in 64 letters; three bytes a number or so."""
        return {
            "run": self.run,
            "targets": self.targets,
            "values": {name: encoded(value) for name, value in self.values.items()},
        }

    @classmethod
    def read(cls, state: Mapping[str, Any], where: str) -> Examples:
        """What ``state`` gave.

        Args:
            state: That.
            where: Names its place in a message.

        Raises:
            DataError: If it is anything else.
        """
        try:
            values = {name: decoded(value) for name, value in state["values"].items()}
            return cls(str(state["run"]), int(state["targets"]), values)
        except (KeyError, TypeError, ValueError, AttributeError, zlib.error) as error:
            hint = "the file as compare wrote it, or without this line"
            raise DataError(f"numbers of examples in {where}", f"{error!r:.80}", hint) from error


def encoded(value: Tensor) -> dict[str, str]:
    """One tensor with one axis as text."""
    kind = str(value.dtype).removeprefix("torch.")
    return {"type": kind, "bits": base64.b64encode(zlib.compress(bytes(bits(value)), 9)).decode("ascii")}


def decoded(state: Mapping[str, str]) -> Tensor:
    """The tensor of a text.

    Raises:
        ValueError: If it is of another type, or damaged.
    """
    kind = state["type"]
    if kind not in KINDS:
        raise ValueError(f"numbers of type {kind}")
    content = zlib.decompress(base64.b64decode(state["bits"], validate=True))
    return torch.from_numpy(np.frombuffer(content, dtype=kind).copy())


def checksum_of(targets: Tensor, so_far: int = 0) -> int:
    """A number that tells targets, in their order, from others."""
    whole = targets.detach().cpu()
    same = whole.long() if not whole.is_floating_point() else wide(whole)
    return zlib.crc32(bits(same), so_far)
