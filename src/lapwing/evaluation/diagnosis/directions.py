"""Draws seen along single directions: random ones, the stiffest, the sloppiest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.evaluation.diagnosis import statistics
from lapwing.evaluation.diagnosis.statistics import Check
from lapwing.ground import probes
from lapwing.ground.errors import NumericalError
from lapwing.linalg import Operator
from lapwing.linalg.eigenpairs import top_eigenpairs
from lapwing.linalg.operator import FunctionOperator

ROWS = 2**16
STEPS = 12
"""Block products spent on either end of the spectrum."""


@final
@dataclass(frozen=True, eq=False)
class Family:
    """Draws along k directions u: ``z = uᵀΛδ / √(uᵀΛu)``, which is N(0, 1) for each draw and each direction.

    The directions are made Λ-orthogonal in their order, so that the k rows are independent; those that depend on
    earlier ones to rounding are left out.

    Args:
        name: ``"random"``, ``"stiff"``, ``"sloppy"``, or the user's.
        z: Projections ``[k, s]``, float64.
        curvature: ``uᵀΛu / uᵀu`` of each direction, float64.
        residual: ``|Λu - curvature u| / (curvature |u|)`` of each, float64: 0 for an eigenvector; from about 1 on the
            direction mixes stiffer and sloppier ones.
    """

    name: str
    z: Float[Tensor, "k s"]
    curvature: Float[Tensor, " k"]
    residual: Float[Tensor, " k"]

    @property
    def variance(self) -> float:
        """Mean of z²: 1 where the draws are right."""
        return float(self.z.square().mean())

    @property
    def checks(self) -> tuple[Check, ...]:
        """Spread and shape of all directions together, and the worst of them."""
        found = (statistics.spread(self.z), statistics.shape(self.z), statistics.worst(self.z))
        return tuple(replace(check, name=f"{self.name} {check.name}") for check in found)

    def __str__(self) -> str:
        """How many, how stiff, how well resolved, how the draws vary along them."""
        low, high = float(self.curvature.min()), float(self.curvature.max())
        resolved = float(self.residual.median())
        return (
            f"{len(self.z)} {self.name} directions: curvature {low:.3g} to {high:.3g}, median residual {resolved:.2g}, "
            f"variance {self.variance:.3g} of 1"
        )


def project(
    name: str,
    directions: Float[Tensor, "d k"],
    precision: Operator,
    image: Float[Tensor, "d s"],
) -> Family:
    """The family of some directions.

    Args:
        name: Of the family.
        directions: One a column, in the operator's dtype.
        precision: Λ.
        image: Λδ of each draw.

    Raises:
        NumericalError: If ``uᵀΛu`` of some direction is not positive.

    Cost:
        k products with Λ.
    """
    product = precision @ directions
    gram, cross = inner(directions, product), inner(directions, image)
    lengths = gram.diagonal()
    if not bool((lengths > 0).all()):
        raise NumericalError(
            "uᵀΛu > 0 for every direction u", f"{float(lengths.min()):.3g}", "a positive prior precision"
        )
    squares = inner(directions, directions).diagonal()
    curvature = lengths / squares
    defect = torch.stack(
        [(p.double() - c * u.double()).norm() for u, p, c in zip(directions.mT, product.mT, curvature, strict=True)]
    )
    unit = lengths.sqrt()
    kept, z = _independent(
        gram / torch.outer(unit, unit), cross / unit[:, None], 1e3 * torch.finfo(precision.dtype).eps
    )
    return Family(name, z, curvature[kept], (defect / (curvature * squares.sqrt()))[kept])


def directions_of(
    precision: Operator, count: int, *, generator: torch.Generator | None = None
) -> dict[str, Float[Tensor, "d k"]]:
    """Random, stiff and sloppy directions of a precision, ``count`` of each.

    Random directions weigh what they see by its curvature. The stiff ones are the top Ritz vectors of Λ. The sloppy
    ones are those of ``β I - Λ`` with β above the spectrum: where Λ is ill-conditioned they are the sloppiest that few
    products can find and not the bottom of the spectrum, as their curvature and residual tell.

    Args:
        precision: Λ.
        count: Directions of each kind, at most d.
        generator: Source of randomness.

    Cost:
        At most ``2 STEPS`` products with blocks of ``count`` columns.
    """
    size = precision.shape[0]
    like = torch.empty(0, dtype=precision.dtype, device=precision.device)
    random = probes.gaussian([size, count], like=like, generator=generator)
    stiff = top_eigenpairs(precision, count, rtol=1e-3, block=count, max_steps=STEPS, generator=generator)
    ceiling = 1.01 * float(stiff.values.max()) + float(stiff.residual.max())

    def flipped(block: Tensor) -> Tensor:
        return ceiling * block - precision @ block

    mirror = FunctionOperator(flipped, flipped, precision.shape, like)
    sloppy = top_eigenpairs(mirror, count, rtol=1e-9, block=count, max_steps=STEPS, generator=generator)
    return {"random": random, "stiff": stiff.vectors.to(like), "sloppy": sloppy.vectors.to(like)}


def inner(a: Float[Tensor, "d k"], b: Float[Tensor, "d s"]) -> Float[Tensor, "k s"]:
    """``aᵀ b`` summed in float64, a slab of rows at a time."""
    total = torch.zeros(a.shape[1], b.shape[1], dtype=torch.float64, device=a.device)
    for left, right in zip(a.split(ROWS), b.split(ROWS), strict=True):
        total += left.double().mT @ right.double()
    return total


def _independent(
    correlation: Float[Tensor, "k k"], z: Float[Tensor, "k s"], tolerance: float
) -> tuple[list[int], Float[Tensor, "k2 s"]]:
    """What each row of z adds to the rows before it, scaled to variance 1; rows that add nothing are left out."""
    correlation, z = correlation.clone(), z.clone()
    kept: list[int] = []
    for i in range(len(z)):
        pivot = correlation[i, i].clone()
        if float(pivot) <= tolerance:
            continue
        kept.append(i)
        factors = correlation[i + 1 :, i : i + 1] / pivot
        z[i + 1 :] -= factors * z[i]
        correlation[i + 1 :] -= factors * correlation[i]
        z[i] /= pivot.sqrt()
    return kept, z[kept]
