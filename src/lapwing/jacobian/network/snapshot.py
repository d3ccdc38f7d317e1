"""What a module's tensors were when a posterior was fitted, and whether they still are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TypeAlias, final
from zlib import crc32

import torch
from torch import Tensor, nn

from lapwing.ground.data.inputs import bits
from lapwing.ground.files.records import checksum
from lapwing.jacobian.network.serving import ALONE

Mark: TypeAlias = tuple[int, torch.Size, tuple[int, ...], torch.dtype, torch.device]
"""Where a tensor lies in memory, and how."""

SAMPLE = 1024
"""Most values of a tensor that are looked at at every call, spread evenly over all its axes."""


@final
class Snapshot:
    """The tensors of a module at one moment: where they lie, their versions, a sample of their values, their checksums.

    A tensor's version counts the writes that autograd sees: everything in place, under ``no_grad`` too, by optimisers,
    ``load_state_dict`` and initialisers. A checksum is computed again only where a version has moved. Where a tensor
    lies changes when it is replaced: by ``weight.data = ...``, ``vector_to_parameters``, a new ``nn.Parameter`` or
    another dtype or device.

    No version sees what is written past autograd: through ``weight.data.add_``, a view in NumPy or from another
    process, by a replayed CUDA graph, or by a fused optimiser such as ``torch.optim.Adam(fused=True)``. The sample sees
    that where it changes a tensor everywhere, as training does. A few values of a large tensor that are written past
    autograd are seen by nothing but the checksum of all bits. Tensors made under ``torch.inference_mode`` have no
    version, sparse ones no place: of these the checksum is computed every time.

    Args:
        module: The module; it is referenced, and only read.

    Cost:
        A pass over the bits of all tensors.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> snapshot = Snapshot(model)
        >>> snapshot.holds()
        True
        >>> with torch.no_grad():
        ...     _ = model.weight.mul_(2)
        >>> snapshot.holds()
        False
    """

    def __init__(self, module: nn.Module) -> None:
        held = tensors_of(module)
        self.module = module
        self.checksums = [checksum(value) for value in held]
        self.marks = [mark_of(value) for value in held]
        self.versions = [version_of(value) for value in held]
        self.sample = [sample_of(value) for value in held if value.layout == torch.strided]
        self.sample_checksum = checksum_of_all(self.sample)

    def holds(self, *, whole: bool = False) -> bool:
        """Whether the module has the same tensors, with the same values as far as one looks.

        Versions that moved over values that stayed, as after loading the same checkpoint, are the new ones.

        Args:
            whole: Whether all bits are looked at.

        Cost:
            Some ten microseconds a tensor. For each tensor whose version moved, and for all with ``whole``, a pass over
            its bits.
        """
        held = tensors_of(self.module)
        if [mark_of(value) for value in held] != self.marks:
            return False
        versions = [version_of(value) for value in held]
        for i, value in enumerate(held):
            suspect = whole or versions[i] is None or versions[i] != self.versions[i]
            if suspect and checksum(value) != self.checksums[i]:
                return False
        self.versions = versions
        return checksum_of_all(self.sample) == self.sample_checksum


def tensors_of(module: nn.Module) -> list[Tensor]:
    """Parameters, then buffers."""
    return [value.detach() for value in chain(module.parameters(), module.buffers())]


def mark_of(value: Tensor) -> Mark:
    """Where a tensor lies and how; a sparse one, which lies in several places, has none."""
    if value.layout != torch.strided:
        return 0, value.shape, (), value.dtype, value.device
    return value.data_ptr(), value.shape, value.stride(), value.dtype, value.device


def version_of(value: Tensor) -> int | None:
    """How often autograd saw a tensor written to; ``None`` where nobody counts."""
    return None if value.is_inference() or value.layout != torch.strided else value._version


def sample_of(value: Tensor) -> Tensor:
    """At most ``SAMPLE`` values of a tensor, as a view: every so many along each axis.

    Example:
        >>> sample_of(torch.zeros(4096, 4096)).shape, sample_of(torch.zeros(2, 4096)).shape
        (torch.Size([32, 32]), torch.Size([2, 512]))
    """
    left = SAMPLE
    axes = sorted(range(value.ndim), key=lambda axis: value.shape[axis])
    for place, axis in enumerate(axes):
        most = max(1, int(left ** (1 / (value.ndim - place)) + 1e-9))
        step = max(1, -(-value.shape[axis] // most))
        value = value[(slice(None),) * axis + (slice(None, None, step),)]
        left //= max(1, value.shape[axis])
    return value


def checksum_of_all(values: Sequence[Tensor]) -> int:
    """One checksum of several tensors, read from each device at once."""
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for value in values:
        alike.setdefault((value.device, value.dtype), []).append(value.reshape(-1))
    total = 0
    for group in alike.values():
        total = crc32(bits(torch.cat(group)), total)
    return total


def digest_of(module: nn.Module) -> int:
    """A checksum of the bits of a module's tensors."""
    digest = 0
    with ALONE:
        for value in chain(module.parameters(), module.buffers()):
            digest = crc32(bits(value), digest)
    return digest
