"""Landmarks of the tangent kernel, and the directions of weight space that they span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from lapwing.errors import NumericalError
from lapwing.linalg.eigenbasis import Eigenbasis
from lapwing.nystrom.gram import LandmarkRows


@final
@dataclass(frozen=True, eq=False)
class Span:
    """The leading directions of the landmarks' rows.

    Args:
        eigenvalues: Eigenvalues of the Gram matrix ``J̃ A⁻¹ J̃ᵀ``, all, descending.
        changes: ``W = A^-½ V`` for orthonormal V: ``J W`` are the features φ.
    """

    eigenvalues: Float[Tensor, " m"]
    changes: Float[Tensor, "d k"]


def span(rows: LandmarkRows, gram: Float[Tensor, "m m"], rank: int, tolerance: float) -> Span:
    """``v_k = J̃ᵀ u_k / √λ_k`` for the leading eigenpairs of the Gram matrix (Deng et al. 2022, equation 10).

    Args:
        rows: The landmarks' rows, in the prior's units.
        gram: Their Gram matrix.
        rank: Eigenpairs K to keep, at most.
        tolerance: Eigenvalues below this part of the largest are rounding, and left out.

    Raises:
        NumericalError: If every landmark's row is 0.
    """
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
    return Span(values, changes.to(rows.deviations))
