"""Curvature as a sum over data: one sweep over the batches, whatever adds up the layer factors it sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.ggn import GGN, Curvature
from lapwing.ground.data import check_inputs, chunks, tensors
from lapwing.ground.errors import DataError
from lapwing.jacobian.layers.factors import Factor
from lapwing.jacobian.layers.layers import Pass
from lapwing.jacobian.model import Model
from lapwing.likelihoods import Likelihood
from lapwing.linalg import Structured

BUDGET = 2**27
"""Bytes the layer factors of one chunk of training data may take (128 MiB)."""


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


@final
@dataclass(frozen=True)
class Fingerprint:
    """What two readings of the same examples have in common, in any order.

    Args:
        examples: Examples n.
        inputs: Accumulator of squares of the inputs.
        targets: Accumulator of squares of the targets.
        nll: Negative log likelihood, nats.
    """

    examples: int
    inputs: float
    targets: float
    nll: float


@final
@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over the data at the trained weights.

    Args:
        parts: Fingerprint of each chunk, in order.
        observations: Scalar observations that the targets stand for, the ignored left out: with a weight, any number.
        misfit: For Gaussian noise the squared error, weighted by the noise precision; 0 for others.
        score: Gradient of the log likelihood in the uncertain weights; only for Gaussian noise.
    """

    parts: tuple[Fingerprint, ...]
    observations: float
    misfit: float
    score: Float[Tensor, " d"] | None

    @property
    def examples(self) -> int:
        """Examples n."""
        return sum(part.examples for part in self.parts)

    @property
    def nll(self) -> float:
        """Negative log likelihood of all targets, nats, all constants included."""
        return sum(part.nll for part in self.parts)


class Tally:
    """Adds up ``Totals`` chunk by chunk."""

    def __init__(self, likelihood: Likelihood, *, with_score: bool = True) -> None:
        self._likelihood = likelihood
        self._with_score = with_score and likelihood.noise is not None
        self.parts: list[Fingerprint] = []
        self._counted = 0.0
        self._misfit = 0.0
        self._score: Tensor | None = None

    def add(self, forward: Pass, f: Tensor, y: Tensor) -> None:
        """Take in one chunk: its forward pass, canonical outputs and canonical targets."""
        likelihood = self._likelihood
        squares = sum(float(x.double().square().sum()) for x in tensors(forward.inputs))
        nll = float(likelihood.nll(f, y).double().sum())
        self.parts.append(Fingerprint(len(f), squares, float(y.double().square().sum()), nll))
        self._counted += likelihood.unweighted.count(y)
        self._misfit += float(likelihood.misfit(f, y))
        if self._with_score:
            part = _score_of(forward, likelihood, f, y)
            self._score = part if self._score is None else self._score + part

    def totals(self) -> Totals:
        """What was added up.

        Raises:
            DataError: If every target is ignored.
        """
        if not self._counted:
            raise DataError("at least one target that is not ignored", "none", "labels other than -100")
        observations = self._likelihood.weight * self._counted
        return Totals(tuple(self.parts), observations, self._misfit, self._score)


def raw(likelihood: Likelihood, cotangents: Tensor) -> Tensor:
    """Cotangents of canonical outputs as cotangents of what the network returns."""
    return cotangents if likelihood.class_dim == -1 else cotangents.movedim(-1, likelihood.class_dim + 1)


def visit(model: Model, size: int) -> Iterator[tuple[Pass, Tensor, Tensor]]:
    """Forward passes over the data in chunks of at most ``size``, with canonical outputs and targets, all checked.

    Raises:
        DataError: If inputs, targets or outputs are not finite, or targets do not fit the likelihood.
        ShapeError: If outputs or targets do not fit the likelihood.
    """
    likelihood = model.likelihood
    for batch in model.data:
        check_inputs(batch.inputs)
        for place, inputs in chunks(batch.inputs, size):
            forward = model.forward(inputs)
            f = likelihood.canonical(forward.outputs)
            y = likelihood.canonical_targets(f, batch.targets[place])
            likelihood.check(f, y)
            yield forward, f, y


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
        total += _score_of(forward, model.likelihood, f, y)
    return total


def _score_of(forward: Pass, likelihood: Likelihood, f: Tensor, y: Tensor) -> Float[Tensor, " d"]:
    """The part of one chunk."""
    return forward.gradient(raw(likelihood, likelihood.score(f, y).unsqueeze(0))[0])


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
            total.add(forward.factors(raw(likelihood, cotangents)), again=number > 0)
        tally.add(forward, f, y)
    return tally.totals()


def chunk_size(model: Model, curvature: Curvature, floats: int = 0) -> int:
    """Examples to a chunk so that their factors stay within ``BUDGET``."""
    outputs = model.likelihood.canonical(torch.empty(1, *model.survey.output, device="meta")).shape[-1]
    roots = 3 * model.width * outputs if isinstance(curvature, GGN) else 0
    return model.chunk(curvature.width(outputs), BUDGET, floats, roots)
