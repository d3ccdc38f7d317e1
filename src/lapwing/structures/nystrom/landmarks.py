"""Landmarks of the tangent kernel, the kernel between them, and the directions of weight space that they span."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.curvature.tangent_features import Pairs, pair_rows
from lapwing.ground import probes
from lapwing.ground.errors import NumericalError, check_bytes
from lapwing.ground.precision import DOUBLE, Precision, wide, wide_like
from lapwing.ground.progress import Bar
from lapwing.jacobian.model import Model
from lapwing.linalg import Dense, pivoted_cholesky
from lapwing.linalg.operators.eigenbasis import decompose
from lapwing.linalg.products import add_product

Landmarks: TypeAlias = Literal["uniform", "leverage", "pivoted"]
"""How landmarks are drawn."""

CANDIDATES = 4
"""Uniform pairs for each landmark that is chosen among them."""

ROWS = 256
"""Rows of a block where all are kept."""

STRIP = 2**23
"""Numbers of a block that are in float64 at once (64 MiB)."""


@final
@dataclass(frozen=True, eq=False)
class LandmarkRows:
    """``J̃ A^-½``: a row of the Jacobian for each landmark, in units in which the prior is standard normal.

    Args:
        model: The network and its likelihood.
        pairs: The landmarks, M (example, output) pairs.
        deviations: ``A^-½``.
        max_bytes: Bytes for rows, and for the Gram matrix.
        together: Rows of a block where all are kept.
        strip: Numbers of a block that are in float64 at once.

    Raises:
        TooLargeError: If the Gram matrix would be larger; nothing is computed.
    """

    model: Model
    pairs: Pairs
    deviations: Float[Tensor, " d"]
    max_bytes: int
    together: int = ROWS
    strip: int = STRIP
    _blocks: dict[int, Tensor] = field(default_factory=dict[int, Tensor], init=False, repr=False)

    def __post_init__(self) -> None:
        needed = 8 * len(self.pairs) ** 2
        got = f"one of {len(self.pairs):,} landmarks, which needs"
        check_bytes("a Gram matrix", needed, self.max_bytes, got, "fewer landmarks, or a larger max_bytes")

    @property
    def all_fit(self) -> bool:
        """Whether all rows are kept."""
        return len(self.pairs) * self._row <= self.max_bytes

    @property
    def places(self) -> list[slice]:
        """Where each block of rows is; two of them are in memory at once."""
        size = self.together if self.all_fit else max(1, self.max_bytes // (2 * self._row))
        return [slice(start, start + size) for start in range(0, len(self.pairs), size)]

    def block(self, number: int) -> Float[Tensor, "m d"]:
        """The rows of a block.

        Cost:
            A forward and a backward pass of each example, the first time or every time.
        """
        if number in self._blocks:
            return self._blocks[number]
        with torch.no_grad():
            rows = pair_rows(self.model, self.pairs.at(self.places[number])).mul_(self.deviations)
        if self.all_fit:
            self._blocks[number] = rows
        return rows

    def gram(self) -> Float[Tensor, "m m"]:
        """``J̃ A⁻¹ J̃ᵀ``, float64.

        Cost:
            ``M² d / 2`` multiplications in float64; ``b (b + 1) / 2`` makings of a block where b of them do not fit.
        """
        size = len(self.pairs)
        gram = torch.zeros(size, size, **wide_like(self.deviations))
        blocks = len(self.places)
        with Bar("landmarks", blocks * (blocks + 1) // 2, unit="pairs of blocks") as bar:
            for i, here in enumerate(self.places):
                left = self.block(i)
                for j, there in enumerate(self.places[: i + 1]):
                    right = left if i == j else self.block(j)
                    found = gram_block(left, right, self.strip, self.model.precision)
                    gram[here, there] = found
                    gram[there, here] = found.mT
                    bar.update()
        return (gram + gram.mT) / 2

    def combined(self, weights: Float[Tensor, "m k"]) -> Float[Tensor, "d k"]:
        """``A^-½ J̃ᵀ weights``: combinations of the rows, in float64."""
        across = weights.mT.contiguous()
        total = weights.new_zeros(weights.shape[1], len(self.deviations))
        for i, here in enumerate(self.places):
            rows = self.block(i)
            for strip in strips(rows, self.strip):
                total[:, strip] += across[:, here] @ wide(rows[:, strip])
        return (total * wide(self.deviations)).mT.contiguous()

    def take(self, index: Int[Tensor, " m"]) -> LandmarkRows:
        """The rows of some of the landmarks."""
        return replace(self, pairs=self.pairs.at(index))

    @property
    def _row(self) -> int:
        """Bytes of a row."""
        return self.model.network.size * self.deviations.element_size()


def gram_block(
    left: Float[Tensor, "m d"], right: Float[Tensor, "m2 d"], strip: int = STRIP, precision: Precision = DOUBLE
) -> Float[Tensor, "m m2"]:
    """``left rightᵀ``, added up in float64, of so many numbers at once."""
    total = torch.zeros(len(left), len(right), **wide_like(left))
    longer = left if len(left) > len(right) else right
    for some in strips(longer, strip):
        add_product(total, precision.operand(left[:, some]), precision.operand(right[:, some]).mT)
    return total


def strips(rows: Float[Tensor, "m d"], numbers: int) -> Iterator[slice]:
    """Columns of rows, of so many numbers each."""
    width = max(1, numbers // len(rows))
    yield from (slice(start, start + width) for start in range(0, rows.shape[1], width))


def landmark_candidates(landmarks: Landmarks, samples: int) -> int:
    """Pairs to draw uniformly for so many landmarks."""
    return samples if landmarks == "uniform" else CANDIDATES * samples


def span(
    rows: LandmarkRows, landmarks: Landmarks, samples: int, rank: int, tolerance: float, generator: torch.Generator
) -> tuple[Float[Tensor, " m"], Float[Tensor, "d k"], Int[Tensor, "m 2"]]:
    """``v_k = J̃ᵀ u_k / √λ_k`` for the leading eigenpairs of the landmarks' Gram matrix (Deng et al. 2022, equation 10).

    Args:
        rows: The candidates' rows, in the prior's units.
        landmarks: How landmarks are chosen among them.
        samples: Landmarks M, at most.
        rank: Eigenpairs K to keep, at most.
        tolerance: Eigenvalues below this part of the largest are rounding, and left out.
        generator: Source of the choice.

    Returns:
        Eigenvalues of the Gram matrix ``J̃ A⁻¹ J̃ᵀ``, all, descending; the changes ``W = A^-½ V`` for orthonormal V, for
        which ``J W`` are the features φ; and the landmarks, the number of the example and the output of each.

    Raises:
        NumericalError: If every landmark's row is 0.
    """
    gram = rows.gram()
    epsilon = rows.model.precision.epsilon
    if landmarks != "uniform" and bool(gram.any()):
        index = drawn_landmarks(gram, landmarks, samples, rank, tolerance, generator).sort().values.cpu()
        rows = rows.take(index)
        gram = gram[index][:, index]
    ascending = decompose(gram, epsilon)
    values = ascending.values.flip(0)
    vectors = ascending.vectors.flip(1)
    k = int((values[:rank] > tolerance * values[0]).sum())
    if not k:
        raise NumericalError(
            "landmarks at which some output changes with some weight",
            "gradients that are all 0",
            "more landmarks, or a network whose outputs do not saturate",
        )
    changes = rows.combined(vectors[:, :k] / values[:k].sqrt())
    pairs = torch.stack([rows.pairs.examples, rows.pairs.outputs], dim=1)
    return values, changes.to(rows.deviations), pairs


def drawn_landmarks(
    gram: Float[Tensor, "m m"],
    landmarks: Landmarks,
    samples: int,
    rank: int,
    tolerance: float,
    generator: torch.Generator,
) -> Int[Tensor, " r"]:
    """Landmarks among candidates whose kernel is at hand.

    Args:
        gram: The kernel K of the candidates.
        landmarks: ``"pivoted"`` takes the pivots of a randomly pivoted Cholesky factorisation (Chen et al. 2023), fewer
            than asked for where the kernel is exhausted; ``"leverage"`` draws in proportion to ``leverage``.
        samples: How many.
        rank: Directions they are for.
        tolerance: What part of the largest eigenvalue is rounding.
        generator: Source of randomness.
    """
    if landmarks == "pivoted":
        _, pivots = pivoted_cholesky(
            Dense(gram), gram.diagonal(), samples, random=True, rtol=1e-12, generator=generator
        )
        return pivots
    scores = leverage(gram, rank, tolerance)
    uniform = probes.uniform([len(gram)], like=gram, generator=generator)
    keys = -uniform.log() / scores.clamp_min(torch.finfo(gram.dtype).tiny)  # the smallest: Efraimidis & Spirakis 2006
    return keys.topk(min(samples, len(gram)), largest=False).indices


def leverage(gram: Float[Tensor, "m m"], rank: int, tolerance: float) -> Float[Tensor, " m"]:
    """Ridge leverage scores ``diag K (K + λ I)⁻¹`` with ``λ = Σ_{i > rank} λ_i / rank`` (Musco & Musco 2017).

    Args:
        gram: K.
        rank: Directions that are to be found.
        tolerance: λ is at least this part of the largest eigenvalue.

    Example:
        >>> leverage(torch.diag(torch.tensor([1.0, 1.0, 0.0])), 2, 1e-6).round(decimals=3).tolist()
        [1.0, 1.0, 0.0]
    """
    basis = decompose(gram)
    values = basis.values
    ridge = torch.maximum(values.flip(0)[rank:].sum() / rank, tolerance * values[-1])
    return (basis.vectors.square() * (values / (values + ridge))).sum(1)
