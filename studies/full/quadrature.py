"""Quadrature points against the quality and the cost of draws (Brack 2023, section 5.2, table 5.1).

The source draws 200 samples of a digit CNN with 15 thousand weights at α = 0.1, by MINRES. Rows with ``solves`` "exact"
have the error of the quadrature alone: in the eigenbasis of Λ a draw is ``r(λ) ε`` with ``r(λ) = Σ w / (λ + t)``, for
which the eigenvalues suffice. The others are what a user gets and what it costs: "MINRES" is the source's solver, "CG"
the one of ``lapwing.solvers.Contour``, with a preconditioner.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import generator
from benchmarks.report import Row, attempt, tried
from benchmarks.tasks import matrix_free
from lapwing.evaluation.diagnosis import Diagnosis, diagnose_samples, directions_of
from lapwing.ground.probes import gaussian
from lapwing.ground.results import Solution
from lapwing.linalg import Diagonal
from lapwing.linalg.contour import contour_inverse_root, inverse_root_rule, spectral_interval
from lapwing.linalg.shifted import Method
from lapwing.linear.preconditioners import Preconditioner, approximation
from lapwing.posteriors import MatrixFreePosterior
from studies.full.setting import ALPHA, SOURCE, Digits
from studies.full.spectrum import spectrum
from studies.published import beside_published

IMAGES = 100
"""Training images the curvature is summed over; the source does not say how many it used."""

POINTS = (1, 2, 3, 4, 5, 10, 20)
"""Those of the source's table."""

MINRES = (3, 5)
CG = (3, 5, 10)
"""Those for which the solver of the source and our own are run."""

PUBLISHED = {1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0001, 5: 0.0284, 10: 0.0542, 20: 0.0561}
"""P-values of the source's Kolmogorov-Smirnov test, by points."""

DRAWS = 200
FAMILY = 16
LEVEL = 0.01
RTOL = 1e-4
STEPS = 3000
SOLVERS: dict[str, Method] = {"MINRES": "minres", "CG": "cg"}


def rows(setting: Setting) -> Iterator[Row]:
    """One row for each way to solve and each number of points."""
    draws = 50 if setting.quick else DRAWS
    digits = Digits(setting)
    model = digits.network()
    data = digits.head(IMAGES, quick=15)
    posterior = matrix_free(model, data, ALPHA)
    facts = digits.facts(model, len(data[1])) | {"draws": draws}
    values = spectrum(model, data)
    precision = Diagonal(ALPHA + torch.nn.functional.pad(values, (0, posterior.network.size - len(values))))
    for points in (1, 8) if setting.quick else POINTS:
        case = facts | {"solves": "exact", "preconditioner": "none", "points": points}
        yield setting.resumed(case, partial(ideal, precision, points, draws))
    directions = directions_of(posterior.precision_operator, FAMILY, generator=generator())
    for name, recipe, solver, several in plan(setting.quick):
        for points in several:
            case = facts | {"solves": solver, "preconditioner": name, "points": points}
            yield setting.resumed(case, partial(drawn, posterior, recipe, SOLVERS[solver], points, draws, directions))


def plan(quick: bool) -> list[tuple[str, Preconditioner | None, str, tuple[int, ...]]]:
    """Preconditioners with their solver and its points."""
    if quick:
        return [("none", None, "MINRES", (1,)), ("top 16 eigenpairs", lw.LowRank(16), "CG", (8,))]
    return [("none", None, "MINRES", MINRES), ("top 50 eigenpairs", lw.LowRank(50), "CG", CG)]


def ideal(precision: Diagonal, points: int, draws: int) -> Row:
    """Draws with exact solves, diagnosed.

    Args:
        precision: Λ in its eigenbasis.
        points: Q.
        draws: Samples.
    """
    values = precision.values
    rule = inverse_root_rule(float(values.min()), float(values.max()), points)
    root = (rule.weights / (values[:, None] + rule.shifts)).sum(1)
    noise = torch.randn(draws, len(values), dtype=torch.float64, generator=generator(1))
    order = values.argsort(descending=True)
    directions = {"stiff": units(order[:FAMILY], len(values)), "sloppy": units(order[-FAMILY:], len(values))}
    found = diagnose_samples(noise * root, torch.zeros_like(values), precision, directions=directions, level=LEVEL)
    relative = float((root * values.sqrt() - 1).abs().max())
    return judged(found) | {"root_error": relative, "condition": float(values.max() / values.min()), "failure": ""}


def units(entries: Int[Tensor, " k"], size: int) -> Float[Tensor, "d k"]:
    """Unit vectors."""
    return torch.nn.functional.one_hot(entries, size).double().mT


def drawn(
    posterior: MatrixFreePosterior,
    recipe: Preconditioner | None,
    solver: Method,
    points: int,
    draws: int,
    directions: Mapping[str, Tensor],
) -> Row:
    """Draws by the contour integral, diagnosed; the seconds are the processor's, preparations left out.

    Args:
        posterior: Whose.
        recipe: Preconditioner.
        solver: Of the shifted systems.
        points: Q.
        draws: Samples.
        directions: To look along, the same for all rows.
    """
    prepared = None if recipe is None else approximation(posterior.problem, recipe)
    interval = spectrum_within(posterior, recipe)
    size = posterior.network.size if prepared is None else prepared.root().shape[1]
    noise = gaussian((size, draws), like=posterior.network.like, generator=generator(1))
    precision = posterior.precision_operator

    def solve() -> Solution:
        return contour_inverse_root(
            precision,
            noise,
            points=points,
            interval=interval,
            preconditioner=prepared,
            method=solver,
            rtol=RTOL,
            max_iterations=STEPS,
        )

    solution, cost = tried(solve, clock=time.process_time)
    row: Row = {"condition": interval[1] / interval[0]} | cost
    if solution is None:
        return row
    zeros = torch.zeros_like(posterior.network.weights)
    found, failure = attempt(
        lambda: diagnose_samples(solution.value.mT, zeros, precision, directions=directions, level=LEVEL)
    )
    if found is not None:
        row |= judged(found)
    return row | solved(solution) | {"failure": failure}


def spectrum_within(posterior: MatrixFreePosterior, recipe: Preconditioner | None) -> tuple[float, float]:
    """An interval around the spectrum of Λ, whose lower end is known, or of ``P⁻¹ Λ``."""
    precision = posterior.precision_operator
    if recipe is None:
        return ALPHA, spectral_interval(precision, generator=generator())[1]
    return spectral_interval(precision, preconditioner=approximation(posterior.problem, recipe), generator=generator())


def solved(solution: Solution) -> Row:
    """What solving took."""
    row: Row = {"iterations": solution.iterations, "matvecs": solution.matvecs, "stopped": solution.stopped}
    return row | {"residual": float(solution.residual.max())}


def judged(found: Diagnosis) -> Row:
    """What the tests say; of a family the p-value of its three tests together, by Bonferroni."""
    row: Row = {"ks_p": found["radius"].p_value, "variance": float(found.distances.mean()) / found.dimension}
    for family in found.families:
        row[f"{family.name}_p"] = min(1.0, 3 * min(check.p_value for check in family.checks))
        row[f"{family.name}_variance"] = family.variance
    return row | {"passed": found.passed, "said": str(found)}


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """P-values of exact solves beside those of the source's table, whose solves stop at some tolerance."""
    for row in found:
        if row.get("solves") == "exact" and row["points"] in PUBLISHED:
            quantity = f"p-value of the distances of {row['draws']} draws, {row['points']} points"
            yield beside_published(quantity, row["ks_p"], PUBLISHED[row["points"]], f"{SOURCE}, table 5.1")
