"""The tangent kernel between landmarks, by blocks of rows that are kept where they fit and else made again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from lapwing.curvature.pairs import Pairs, pair_rows
from lapwing.ground.errors import TooLargeError
from lapwing.jacobian.model import Model

ROWS = 256
"""Rows of a block where all are kept."""

STRIP = 2**23
"""Numbers of a block that are in float64 at once (64 MiB)."""


@final
@dataclass(frozen=True, eq=False)
class LandmarkRows:
    """``J̃ A^-½``: a row of the Jacobian for each landmark, in units in which the prior is standard normal.

    Args:
        training: The network and its likelihood.
        pairs: The landmarks, M (example, output) pairs.
        deviations: ``A^-½``.
        max_bytes: Bytes for rows, and for the Gram matrix.

    Raises:
        TooLargeError: If the Gram matrix would be larger; nothing is computed.
    """

    training: Model
    pairs: Pairs
    deviations: Float[Tensor, " d"]
    max_bytes: int
    _kept: dict[int, Tensor] = field(default_factory=dict[int, Tensor], init=False, repr=False)

    def __post_init__(self) -> None:
        needed = 8 * len(self.pairs) ** 2
        if needed > self.max_bytes:
            raise TooLargeError(
                f"a Gram matrix of at most {self.max_bytes:,} bytes",
                f"one of {len(self.pairs):,} landmarks, which needs {needed:,} bytes",
                "fewer landmarks, or a larger max_bytes",
            )

    @property
    def fit(self) -> bool:
        """Whether all rows are kept."""
        return len(self.pairs) * self._row <= self.max_bytes

    @property
    def places(self) -> list[slice]:
        """Where each block of rows is; two of them are in memory at once."""
        size = ROWS if self.fit else max(1, self.max_bytes // (2 * self._row))
        return [slice(start, start + size) for start in range(0, len(self.pairs), size)]

    def block(self, number: int) -> Float[Tensor, "m d"]:
        """The rows of a block.

        Cost:
            A forward and a backward pass of each example, the first time or every time.
        """
        if number in self._kept:
            return self._kept[number]
        with torch.no_grad():
            rows = pair_rows(self.training, self.pairs.at(self.places[number])).mul_(self.deviations)
        if self.fit:
            self._kept[number] = rows
        return rows

    def gram(self) -> Float[Tensor, "m m"]:
        """``J̃ A⁻¹ J̃ᵀ``, float64.

        Cost:
            ``M² d / 2`` multiplications in float64; ``b (b + 1) / 2`` makings of a block where b of them do not fit.
        """
        size, like = len(self.pairs), self.deviations
        gram = torch.zeros(size, size, dtype=torch.float64, device=like.device)
        progress = self.training.data.progress
        for i, here in enumerate(tqdm(self.places, desc="landmarks", disable=not progress, unit="block", leave=False)):
            left = self.block(i)
            for j, there in enumerate(self.places[: i + 1]):
                found = product(left, left if i == j else self.block(j))
                gram[here, there], gram[there, here] = found, found.mT
        return (gram + gram.mT) / 2

    def combined(self, weights: Float[Tensor, "m k"]) -> Float[Tensor, "d k"]:
        """``A^-½ J̃ᵀ weights``: combinations of the rows, in float64."""
        across = weights.mT.contiguous()
        total = weights.new_zeros(weights.shape[1], len(self.deviations))
        for i, here in enumerate(self.places):
            rows = self.block(i)
            for strip in strips(rows):
                total[:, strip] += across[:, here] @ rows[:, strip].double()
        return (total * self.deviations.double()).mT.contiguous()

    def at(self, index: Int[Tensor, " m"]) -> LandmarkRows:
        """The rows of some of the landmarks."""
        return LandmarkRows(self.training, self.pairs.at(index), self.deviations, self.max_bytes)

    @property
    def _row(self) -> int:
        """Bytes of a row."""
        return self.training.network.size * self.training.network.like.element_size()


def product(left: Float[Tensor, "m d"], right: Float[Tensor, "m2 d"]) -> Float[Tensor, "m m2"]:
    """``left rightᵀ``, added up in float64."""
    total = torch.zeros(len(left), len(right), dtype=torch.float64, device=left.device)
    for strip in strips(left if len(left) > len(right) else right):
        total.addmm_(left[:, strip].double(), right[:, strip].double().mT)
    return total


def strips(rows: Float[Tensor, "m d"]) -> Iterator[slice]:
    """Columns of rows, as many as may be in float64 at once."""
    width = max(1, STRIP // len(rows))
    yield from (slice(start, start + width) for start in range(0, rows.shape[1], width))
