"""Preconditioners compared: iterations, seconds and accuracy of draws by perturb-and-solve (Brack 2023, table 4.1).

All solve the same systems. Accuracy is ``|x - x*|_Λ / |x*|_Λ`` against a solution x* of residual 1e-9 in float64, the
largest over the draws; the condition number of ``P⁻¹ Λ`` comes from an interval that errs outward. Seconds are the
processor's.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import Pair, generator
from benchmarks.report import Row, attempt, tried
from benchmarks.tasks import matrix_free
from lapwing.ground.results import Solution
from lapwing.linalg import Operator, Structured
from lapwing.linalg.cg import conjugate_gradients
from lapwing.linalg.contour import spectral_interval
from lapwing.linear.perturbation import Perturbation
from lapwing.linear.preconditioners import Preconditioner, approximation
from lapwing.posteriors import MatrixFreePosterior
from studies.full.quadrature import solved
from studies.full.setting import ALPHA, Digits

IMAGES = 200
DRAWS = 8
RTOL = 1e-4
STEPS = 2000


def recipes(rank: int, examples: int) -> dict[str, Preconditioner | None]:
    """All there are, and some of them in two sizes.

    Args:
        rank: Of those with low rank.
        examples: Of the sub-sampled ones.
    """
    made = lw.preconditioners
    return {
        "none": None,
        "A. rank-one gradient": made.RankOne(),
        f"B. sub-sampled GGN, {examples} images": made.Subsample(examples, scaled=False),
        f"B. sub-sampled GGN, {examples} images, scaled": made.Subsample(examples),
        f"B. sub-sampled GGN, {2 * examples} images, scaled": made.Subsample(2 * examples),
        "C. single image, Woodbury": made.Subsample(1),
        f"D. pivoted Cholesky, rank {rank}": made.PivotedCholesky(rank),
        f"E. pivoted Cholesky, rank {rank}, random pivots": made.PivotedCholesky(rank, pivots="random"),
        "F. diagonal": lw.Diagonal(),
        "F. KFAC": lw.KFAC(),
        f"ours: top eigenpairs, rank {rank}": lw.LowRank(rank),
        f"ours: top eigenpairs, rank {3 * rank}": lw.LowRank(3 * rank),
    }


def rows(setting: Setting) -> Iterator[Row]:
    """One row a recipe; letters are those of the source's table."""
    draws = 4 if setting.quick else DRAWS
    digits = Digits(setting)
    model = digits.network()
    data = digits.head(IMAGES, quick=10)
    posterior = matrix_free(model, data, ALPHA)
    problem = posterior.problem
    with torch.no_grad():
        noise = Perturbation.drawn(problem, draws, generator=generator()).right_hand_side(problem)
    reference = exactly(model, data, noise, 20 if setting.quick else 300)
    facts = digits.facts(model, len(data[1])) | {"draws": draws, "rtol": RTOL}
    for name, recipe in (recipes(4, 2) if setting.quick else recipes(100, 25)).items():
        measure = partial(compared, posterior, recipe, noise, reference.value, steps=20 if setting.quick else 100)
        row = setting.resumed(facts | {"preconditioner": name}, measure)
        yield row | {"reference_residual": float(reference.residual.max())}


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

    def prepare() -> Structured | None:
        return None if recipe is None else approximation(posterior.problem, recipe)

    made, row = tried(prepare, "seconds_preparing", time.process_time)
    if row["failure"]:
        return row

    def solve() -> Solution:
        return conjugate_gradients(precision, noise, rtol=RTOL, max_iterations=STEPS, preconditioner=made)

    solution, cost = tried(solve, "seconds_solving", time.process_time)
    interval, why = attempt(
        lambda: spectral_interval(precision, steps=steps, preconditioner=made, generator=generator())
    )
    row |= cost | {"failure": cost["failure"] or why}
    if interval is not None:
        row["condition"] = interval[1] / (ALPHA if recipe is None else interval[0])
    if solution is not None:
        row |= solved(solution) | {"error": error(precision, solution.value, reference)}
    return row


def exactly(model: nn.Module, data: Pair, noise: Float[Tensor, "d s"], rank: int) -> Solution:
    """The reference solution, in float64, whatever the network's own precision; the rank is the preconditioner's."""
    posterior = matrix_free(copy.deepcopy(model).double(), (data[0].double(), data[1]), ALPHA)
    made = approximation(posterior.problem, lw.LowRank(min(rank, len(noise) // 4)))
    with torch.no_grad():
        return conjugate_gradients(
            posterior.precision_operator, noise.double(), rtol=1e-9, max_iterations=STEPS, preconditioner=made
        )


def error(precision: Operator, found: Float[Tensor, "d s"], reference: Float[Tensor, "d s"]) -> float:
    """Largest relative error over the columns, in the norm of the precision: a length in posterior deviations."""
    off = (found.double() - reference.double()).to(precision.dtype)
    size = reference.to(precision.dtype)
    squares = [(v.double() * (precision @ v).double()).sum(0) for v in (off, size)]
    return float((squares[0].clamp_min(0) / squares[1]).sqrt().max())
