"""Landmarks of the tangent kernel, and the directions of weight space that they span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import NumericalError
from lapwing.linalg import Dense
from lapwing.linalg.eigenbasis import Eigenbasis
from lapwing.linalg.pivoted import pivots_of
from lapwing.structures.ella.gram import LandmarkRows

Landmarks: TypeAlias = Literal["uniform", "leverage", "pivoted"]
"""How landmarks are drawn."""

CANDIDATES = 4
"""Uniform pairs for each landmark that is chosen among them."""


@final
@dataclass(frozen=True, eq=False)
class Span:
    """The leading directions of the landmarks' rows.

    Args:
        eigenvalues: Eigenvalues of the Gram matrix ``J̃ A⁻¹ J̃ᵀ``, all, descending.
        changes: ``W = A^-½ V`` for orthonormal V: ``J W`` are the features φ.
        pairs: The landmarks: number of the example, and output.
    """

    eigenvalues: Float[Tensor, " m"]
    changes: Float[Tensor, "d k"]
    pairs: Int[Tensor, "m 2"]


def candidates(landmarks: Landmarks, samples: int) -> int:
    """Pairs to draw uniformly for so many landmarks."""
    return samples if landmarks == "uniform" else CANDIDATES * samples


def span(
    rows: LandmarkRows, landmarks: Landmarks, samples: int, rank: int, tolerance: float, generator: torch.Generator
) -> Span:
    """``v_k = J̃ᵀ u_k / √λ_k`` for the leading eigenpairs of the landmarks' Gram matrix (Deng et al. 2022, equation 10).

    Args:
        rows: The candidates' rows, in the prior's units.
        landmarks: How landmarks are chosen among them.
        samples: Landmarks M, at most.
        rank: Eigenpairs K to keep, at most.
        tolerance: Eigenvalues below this part of the largest are rounding, and left out.
        generator: Source of the choice.

    Raises:
        NumericalError: If every landmark's row is 0.
    """
    gram = rows.gram()
    if landmarks != "uniform" and bool(gram.any()):
        index = chosen(gram, landmarks, samples, rank, tolerance, generator).sort().values.cpu()
        rows, gram = rows.at(index), gram[index][:, index]
    basis = Eigenbasis(gram)
    values, vectors = basis.values.flip(0), basis.vectors.flip(1)
    kept = int((values[:rank] > tolerance * values[0]).sum())
    if not kept:
        raise NumericalError(
            "landmarks at which some output changes with some weight",
            "gradients that are all 0",
            "more landmarks, or a network whose outputs do not saturate",
        )
    changes = rows.combined(vectors[:, :kept] / values[:kept].sqrt())
    pairs = torch.stack([rows.pairs.examples, rows.pairs.outputs], dim=1)
    return Span(values, changes.to(rows.deviations), pairs)


def chosen(
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
        return pivots_of(Dense(gram), gram.diagonal(), samples, random=True, generator=generator).to(gram.device)
    scores = leverage(gram, rank, tolerance)
    uniform = torch.special.ndtr(probes.gaussian([len(gram)], like=gram, generator=generator))
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
    basis = Eigenbasis(gram)
    values = basis.values
    ridge = torch.maximum(values.flip(0)[rank:].sum() / rank, tolerance * values[-1])
    return (basis.vectors.square() * (values / (values + ridge))).sum(1)
