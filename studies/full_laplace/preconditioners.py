"""Preconditioners compared: iterations, products, seconds and accuracy of draws by perturb-and-solve.

All solve the same systems. Accuracy is ``|x - x*|_Λ / |x*|_Λ`` against a solution x* of residual 1e-9 in float64, the
largest over the draws; the condition number of ``P⁻¹ Λ`` comes from an interval that errs outward.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import Pair, generator
from benchmarks.report import Row, attempt, figure, tried
from benchmarks.tasks import matrix_free
from lapwing.ground.results import Solution
from lapwing.linalg import Operator
from lapwing.linalg.cg import conjugate_gradients
from lapwing.linalg.contour import spectral_interval
from lapwing.linear.perturbation import Perturbation
from lapwing.linear.preconditioners import PivotedCholesky, Preconditioner, RankOne, Subsample, approximation
from lapwing.posteriors import MatrixFreePosterior
from studies.full_laplace.quadrature import solved
from studies.full_laplace.setting import ALPHA, Digits

IMAGES = 1000
RTOL = 1e-4


def recipes(rank: int, examples: int) -> dict[str, Preconditioner | None]:
    """All there are, and some of them in two sizes.

    Args:
        rank: Of those with low rank.
        examples: Of the sub-sampled ones.
    """
    return {
        "none": None,
        "rank-one gradient": RankOne(),
        "diagonal": lw.Diagonal(),
        "KFAC": lw.KFAC(),
        f"sub-sampled GGN, {examples} images, scaled": Subsample(examples),
        f"sub-sampled GGN, {examples} images": Subsample(examples, scaled=False),
        f"sub-sampled GGN, {2 * examples} images, scaled": Subsample(2 * examples),
        "single image, Woodbury": Subsample(1),
        f"pivoted Cholesky, rank {rank}": PivotedCholesky(rank),
        f"pivoted Cholesky, rank {rank}, random pivots": PivotedCholesky(rank, pivots="random"),
        f"top eigenpairs, rank {rank}": lw.LowRank(rank),
        f"top eigenpairs, rank {3 * rank}": lw.LowRank(3 * rank),
    }


def rows(setting: Setting) -> Iterator[Row]:
    """One row a recipe."""
    draws, rank = (4, 20) if setting.quick else (16, 300)
    digits = Digits(setting)
    model, data = digits.network(), digits.head(IMAGES, quick=10)
    posterior = matrix_free(model, data, ALPHA)
    problem = posterior.problem
    with torch.no_grad():
        noise = Perturbation.drawn(problem, draws, generator=generator()).right_hand_side(problem)
    reference = exactly(model, data, noise, rank)
    head = digits.facts(model, len(data[1])) | {"draws": draws, "rtol": RTOL}
    head |= {"reference_residual": float(reference.residual.max())}
    steps = 20 if setting.quick else 200
    for name, recipe in (recipes(4, 2) if setting.quick else recipes(100, 50)).items():
        row = compared(posterior, recipe, noise, reference.value, steps=steps)
        yield head | {"preconditioner": name} | row


def compared(
    posterior: MatrixFreePosterior,
    recipe: Preconditioner | None,
    noise: Float[Tensor, "d s"],
    reference: Float[Tensor, "d s"],
    *,
    steps: int,
) -> Row:
    """What it takes to make one preconditioner, and what solving with it takes then.

    Args:
        posterior: With the precision to solve with.
        recipe: Preconditioner.
        noise: Right-hand sides.
        reference: Solutions.
        steps: Lanczos steps for the condition number.
    """
    precision = posterior.precision_operator
    prepare = lambda: None if recipe is None else approximation(posterior.problem, recipe)  # noqa: E731
    made, row = tried(prepare, "seconds_preparing")
    if row["failure"]:
        return row
    options = {"rtol": RTOL, "max_iterations": 2000, "preconditioner": made}
    solution, cost = tried(lambda: conjugate_gradients(precision, noise, **options), "seconds_solving")
    interval, why = attempt(
        lambda: spectral_interval(precision, steps=steps, preconditioner=made, generator=generator())
    )
    row |= cost | {"failure": cost["failure"] or why}
    row["condition"] = None if interval is None else interval[1] / (ALPHA if recipe is None else interval[0])
    return row if solution is None else row | solved(solution) | {"error": error(precision, solution.value, reference)}


def exactly(model: nn.Module, data: Pair, noise: Float[Tensor, "d s"], rank: int) -> Solution:
    """The reference solution, in float64, whatever the network's own precision; the rank is the preconditioner's."""
    posterior = matrix_free(copy.deepcopy(model).double(), (data[0].double(), data[1]), ALPHA)
    made = approximation(posterior.problem, lw.LowRank(min(rank, len(noise) // 4)))
    with torch.no_grad():
        return conjugate_gradients(
            posterior.precision_operator, noise.double(), rtol=1e-9, max_iterations=2000, preconditioner=made
        )


def error(precision: Operator, found: Float[Tensor, "d s"], reference: Float[Tensor, "d s"]) -> float:
    """Largest relative error over the columns, in the norm of the precision: a length in posterior deviations."""
    off = (found.double() - reference.double()).to(precision.dtype)
    size = reference.to(precision.dtype)
    squares = [(v.double() * (precision @ v).double()).sum(0) for v in (off, size)]
    return float((squares[0].clamp_min(0) / squares[1]).sqrt().max())


def draw(found: Sequence[Row]) -> Any:
    """Bars: seconds, preparation included, and iterations."""
    own = [row for row in found if row.get("iterations") is not None]
    names = [row["preconditioner"] for row in own]
    made = figure(11.0, 0.6 + 0.4 * len(own), 2)
    left, right = made.axes
    solving, preparing = ([row[f"seconds_{part}"] for row in own] for part in ("solving", "preparing"))
    left.barh(names, solving, color="#0072B2", label="solving")
    left.barh(names, preparing, left=solving, color="#E69F00", label="preparing")
    left.set(xlabel="seconds")
    left.legend(frameon=False)
    right.barh(names, [row["iterations"] for row in own], color="#999999")
    right.set(xlabel=f"iterations to a residual of {RTOL:g}", yticks=[])
    for panel in made.axes:
        panel.invert_yaxis()
    return made
