"""What tells a comparison from others: its network, its data, and how it is scored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, final

from torch import Tensor, nn

from lapwing.comparison.contents import code_in
from lapwing.ground.data.inputs import Inputs, bits, count, take, tensors
from lapwing.ground.data.sources import Data, Source, Unpack, inputs_of
from lapwing.ground.files.records import checksum
from lapwing.jacobian.network.snapshot import digest_of
from lapwing.jacobian.network.unwrapping import unwrapped

MODULUS = 2**64


def fingerprint(model: nn.Module, train: Source, test: Source, unpack: Unpack | None = None) -> str:
    """A number, in 16 letters, of a network and the data that it is trained and scored on.

    Of the network its weights count, what it prints, which tells tanh from ReLU, and the functions that it holds, such
    as views of the input; of data all numbers, in any order. Training inputs that are others at a second reading, as
    augmented ones are, do not count, nor do targets that are.

    Args:
        model: The network.
        train: Its training data.
        test: Data it is scored on.
        unpack: Splits one element of a loader.

    Cost:
        Two passes over the training data and one over the others, without the network.

    Example:
        >>> import torch
        >>> x, y = torch.zeros(3, 2), torch.arange(3)
        >>> model = nn.Linear(2, 3)
        >>> same = fingerprint(model, (x, y), (x, y)) == fingerprint(model, (x, y.flip(0)), (x, y))
        >>> same, fingerprint(model, (x, y), (x, y)) == fingerprint(model, (x + 1, y), (x, y))
        (True, False)
    """
    module = unwrapped(model)
    parts = [f"{digest_of(module)} {module!r}", f"train {of_training(train, unpack)}", f"test {of_data(test, unpack)}"]
    code = list(code_in(module, set()))
    if code:
        parts.append(f"code {checksum(code)}")
    return letters(parts)


def scoring_fingerprint(
    others: Mapping[str, Source], ood: Source | Inputs | None, choices: Any, unpack: Unpack | None = None
) -> str:
    """The same of what methods are tuned and scored by beside that.

    Args:
        others: Data they are tuned or scored on, by name.
        ood: Data from elsewhere, or their inputs.
        choices: Whatever else the numbers of every method depend on.
        unpack: Splits one element of a loader.
    """
    parts = [f"{checksum(choices)}"]
    for name, source in sorted(others.items()):
        parts.append(f"{name} {of_data(source, unpack)}")
    if ood is not None:
        total = Total()
        for inputs in inputs_of(ood, unpack):
            total.add(examples(inputs))
        parts.append(f"ood {total}")
    return letters(parts)


def letters(parts: Iterable[str]) -> str:
    """The 16 letters of some words."""
    return hashlib.sha256("; ".join(parts).encode()).hexdigest()[:16]


def of_training(train: Source, unpack: Unpack | None) -> str:
    """What is the same of training data at two readings: examples, else their targets, else how many there are."""
    (whole, targets), (whole_again, targets_again) = (readings(train, unpack) for _ in range(2))
    if f"{whole}" == f"{whole_again}":
        return f"{whole}"
    return f"targets {targets}" if f"{targets}" == f"{targets_again}" else f"{whole.number}"


def of_data(source: Source, unpack: Unpack | None) -> str:
    """That of all examples."""
    whole, _ = readings(source, unpack)
    return f"{whole}"


def readings(source: Source, unpack: Unpack | None) -> tuple[Total, Total]:
    """Totals of whole examples, inputs and targets, and of their targets alone."""
    whole = Total()
    alone = Total()
    for batch in Data(source, unpack=unpack):
        targets = rows(batch.targets)
        alone.add(targets)
        whole.add(x + y for x, y in zip(examples(batch.inputs), targets, strict=True))
    return whole, alone


@final
class Total:
    """How many there are, and the sum of their hashes, which no order changes."""

    def __init__(self) -> None:
        self.number = 0
        self.hashes = 0

    def add(self, contents: Iterable[bytes]) -> None:
        """Count more of them."""
        for each in contents:
            hashed = int.from_bytes(hashlib.blake2b(each, digest_size=8).digest())
            self.hashes = (self.hashes + hashed) % MODULUS
            self.number += 1

    def __str__(self) -> str:
        return f"{self.number}:{self.hashes:x}"


def examples(inputs: Inputs) -> list[bytes]:
    """The bytes of every example of some inputs."""
    alone = [take(inputs, slice(place, place + 1)) for place in range(count(inputs))]
    return [b"".join(bytes(bits(value)) for value in tensors(one)) for one in alone]


def rows(targets: Tensor) -> list[bytes]:
    """The bytes of every target."""
    return [bytes(bits(target)) for target in targets]
