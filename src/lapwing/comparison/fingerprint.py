"""What tells a comparison from others: its network, its data, and how it is scored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from lapwing.ground.data.inputs import Inputs, bits, count, take, tensors
from lapwing.ground.data.sources import Data, Source, Unpack, inputs_of
from lapwing.ground.files.records import checksum
from lapwing.jacobian.network.snapshot import digest_of
from lapwing.jacobian.network.unwrapping import unwrapped

MODULUS = 2**64


def fingerprint(
    model: nn.Module,
    train: Source,
    scored: Mapping[str, Source],
    ood: Source | Inputs | None,
    choices: Any,
    unpack: Unpack | None = None,
) -> str:
    """A number, in 16 letters, of a network, its data and choices.

    Of the network its weights and what it prints as count, which tells tanh from ReLU. Of the training data their
    targets count alone, in any order: inputs may be augmented anew in every pass. Of others all numbers count, in any
    order.

    Args:
        model: The network.
        train: Its training data.
        scored: Data it is tuned or scored on, by name.
        ood: Data from elsewhere, or their inputs.
        choices: Whatever else the numbers of every method depend on.
        unpack: Splits one element of a loader.

    Cost:
        A pass over all data without the network.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(3, 2), torch.arange(3)
        >>> model = nn.Linear(2, 3)
        >>> same = fingerprint(model, (x, y), {}, None, ()) == fingerprint(model, (x, y.flip(0)), {}, None, ())
        >>> same, fingerprint(model, (x, y), {}, None, ()) == fingerprint(model, (x, y + 1), {}, None, ())
        (True, False)
    """
    module = unwrapped(model)
    parts = [f"{digest_of(module)} {module!r} {checksum(choices)}"]
    parts.append(f"train {summed(rows(batch.targets) for batch in Data(train, unpack=unpack))}")
    for name, source in sorted(scored.items()):
        batches = whole_examples(source, unpack)
        parts.append(f"{name} {summed(batches)}")
    if ood is not None:
        parts.append(f"ood {summed(examples(inputs) for inputs in inputs_of(ood, unpack))}")
    return hashlib.sha256("; ".join(parts).encode()).hexdigest()[:16]


def whole_examples(source: Source, unpack: Unpack | None) -> Iterable[Iterable[bytes]]:
    """The bytes of every example of a source, inputs and targets, batch by batch."""
    for batch in Data(source, unpack=unpack):
        yield [x + y for x, y in zip(examples(batch.inputs), rows(batch.targets), strict=True)]


def examples(inputs: Inputs) -> list[bytes]:
    """The bytes of every example of some inputs."""
    alone = [take(inputs, slice(place, place + 1)) for place in range(count(inputs))]
    return [b"".join(bytes(bits(value)) for value in tensors(one)) for one in alone]


def rows(targets: Tensor) -> list[bytes]:
    """The bytes of every target."""
    return [bytes(bits(target)) for target in targets]


def summed(batches: Iterable[Iterable[bytes]]) -> str:
    """How many there are, and the sum of their hashes, which no order changes."""
    total = 0
    number = 0
    for batch in batches:
        for each in batch:
            total = (total + int.from_bytes(hashlib.blake2b(each, digest_size=8).digest())) % MODULUS
            number += 1
    return f"{number}:{total:x}"
