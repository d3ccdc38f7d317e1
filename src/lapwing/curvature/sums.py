"""Curvature as a sum over data: one sweep over the batches, whatever adds up the layer factors it sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.ggn import GGN, Curvature
from lapwing.curvature.totals import Tally, Totals, score_of, visit
from lapwing.jacobian.layers.factors import Factor
from lapwing.jacobian.layers.passes import jacobian_rows, square_sums
from lapwing.jacobian.model import BUDGET, Model
from lapwing.jacobian.network.network import Network
from lapwing.linalg import Dense, Diagonal, Structured
from lapwing.linalg.structured import finite


@runtime_checkable
class Accumulator(Protocol):
    """A structure being added up."""

    @property
    def floats(self) -> int:
        """Numbers the structure needs for each example and cotangent, beyond the layer factors."""
        ...

    def add(self, factors: Iterator[Factor], *, again: bool = False) -> None:
        """Take in the factors of one block of cotangents of one chunk, ``again`` after the chunk's first block."""
        ...

    def result(self) -> Held:
        """What was added up."""
        ...


@final
@dataclass(frozen=True, eq=False)
class Held:
    """Curvature in a structure.

    Args:
        operator: The matrix, on the flat vector of uncertain weights.
        partition: Parameters of each block, where the operator is a ``BlockDiagonal``; empty otherwise.
    """

    operator: Structured
    partition: tuple[tuple[str, ...], ...] = ()


def score(model: Model) -> Float[Tensor, " d"]:
    """Gradient of the log likelihood of all data in the uncertain weights, at the trained ones.

    Args:
        model: The network, its likelihood with its noise, and the data.

    Returns:
        ``Σ_n J_nᵀ ∇_f log p(y_n | f_n)``.

    Cost:
        One forward and one backward pass over the data.
    """
    total = torch.zeros_like(model.network.weights)
    for forward, f, y in visit(model, chunk_size(model, GGN())):
        total += score_of(forward, model.likelihood, f, y)
    return total


def sweep(
    model: Model, curvature: Curvature, total: Accumulator, *, generator: torch.Generator | None = None
) -> Totals:
    """One pass over the data that feeds ``total``.

    Args:
        model: The network, its likelihood, and the data.
        curvature: Which matrix.
        total: What adds up the factors.
        generator: Source of randomness of the curvature.

    Returns:
        Sums over the data.

    Cost:
        One forward pass, and a backward pass through the activations for each cotangent; memory ``BUDGET``.
    """
    likelihood = model.likelihood
    tally = Tally(likelihood)
    for forward, f, y in visit(model, chunk_size(model, curvature, total.floats)):
        blocks = curvature.cotangents(likelihood, f, y, generator=generator)
        for number, cotangents in enumerate(blocks):
            total.add(forward.factors(cotangents), again=number > 0)
        tally.add(forward, f, y)
    return tally.totals()


def chunk_size(model: Model, curvature: Curvature, floats: int = 0) -> int:
    """Examples to a chunk so that their factors stay within ``BUDGET``."""
    outputs = model.likelihood.canonical(torch.empty(1, *model.survey.output, device="meta")).shape[-1]
    roots = 3 * model.width * outputs if isinstance(curvature, GGN) else 0
    return model.chunk(curvature.width(outputs), BUDGET, floats, roots)


class DenseSum:
    """Adds up ``sum_nk (J_nᵀ u_nk)(J_nᵀ u_nk)ᵀ``, d by d, in float64 whatever the network's dtype.

    Added up in float32, directions the data say nothing about would get a curvature of 1e-7 times the largest, more
    than a weak prior's precision.

    Args:
        network: The network whose weights are uncertain.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._total = torch.zeros(network.size, network.size, dtype=torch.float64, device=network.like.device)

    @property
    def floats(self) -> int:
        """One explicit row."""
        return self._network.layout.size

    def add(self, factors: Iterator[Factor], *, again: bool = False) -> None:
        """Take in the factors of one block of cotangents of one chunk."""
        rows = jacobian_rows(self._network, factors).flatten(0, 1).double()
        self._total.addmm_(rows.mT, rows)

    def result(self) -> Held:
        """The matrix."""
        return Held(Dense(self._total))


class DiagonalSum:
    """Adds up ``sum_nk (J_nᵀ u_nk)²``, one number a weight.

    Args:
        network: The network whose weights are uncertain.
    """

    floats = 0

    def __init__(self, network: Network) -> None:
        self._network = network
        self._total = network.like.new_zeros(network.size)

    def add(self, factors: Iterator[Factor], *, again: bool = False) -> None:
        """Take in the factors of one block of cotangents of one chunk."""
        self._total += square_sums(self._network, factors)

    def result(self) -> Held:
        """The diagonal.

        Raises:
            NumericalError: If a square overflowed.
        """
        return Held(Diagonal(finite(self._total)))
