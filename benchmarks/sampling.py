"""Posterior samples of a digit CNN of 15 thousand weights: perturb and solve, against contour quadrature.

    python -m benchmarks.sampling --json FILE [--data DIR]

Both draw from N(0, Λ⁻¹) for the same Λ, at prior precision 0.1. Ours: preconditioned block conjugate gradients on all
samples at once. The other: contour-integral quadrature with unpreconditioned multi-shift MINRES, as its source has it
(Brack 2023, algorithms 1 to 3), on fewer samples, its tolerance tightened until its samples are as accurate as ours
along the stiff eigenvectors u of Λ, where the exact coordinate is known: z = uᵀ b / √λ for b = Λ δ, and uᵀ ε for
δ = Λ^-½ ε.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from jaxtyping import Float
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.data import digits, generator, mnist
from benchmarks.networks import digit_cnn
from benchmarks.report import Row, beside
from benchmarks.tasks import matrix_free, probabilities
from benchmarks.training import train
from lapwing.evaluation.diagnosis import Diagnosis, diagnose_samples
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.ground import probes
from lapwing.ground.results import Solution
from lapwing.linalg.eigenpairs import top_eigenpairs
from lapwing.linear.gauss_newton import GGNProduct
from lapwing.linear.perturbation import Perturbation
from lapwing.posteriors import MatrixFreePosterior

ALPHA = 0.1
TOLERANCES = (1e-3, 1e-4, 1e-5, 1e-6)


@dataclass(frozen=True)
class Drawn:
    """Samples of one way, and what they cost.

    Args:
        solution: The samples.
        seconds: Wall-clock seconds of the whole call, preconditioner included.
        products: Columns multiplied by the curvature, preconditioner included.
        error: Root mean square error of the coordinates z along the stiff eigenvectors.
        radius: Mean of ``δᵀ Λ δ / d``, which is 1 for exact samples.
    """

    solution: Solution
    seconds: float
    products: int
    error: float
    radius: float

    @property
    def samples(self) -> int:
        """How many."""
        return self.solution.value.shape[1]


def rows(setting: Setting) -> Iterator[Row]:
    """Train, draw both ways, test the samples."""
    more = setting.more
    split = mnist(setting.data) if setting.data else digits()
    x, y = split.head(60 if setting.quick else setting.images or 5000).to(setting.device).train
    model = digit_cnn(28 if setting.data else 8, hidden=8 if setting.quick else None).to(setting.device)
    train(model, x, y, epochs=setting.epochs or 8, decay=ALPHA / len(y))
    solver = lw.solvers.CG(
        rtol=more["rtol"], preconditioner=lw.preconditioners.PivotedCholesky(more["rank"]), max_bytes=2**31
    )
    posterior = matrix_free(model, (x, y), ALPHA, solver)
    eigenpairs = top_eigenpairs(posterior.problem.precision, more["stiff"], generator=generator(1))
    stiff = (eigenpairs.values.to(x), eigenpairs.vectors)
    yield beside("setting/weights", "count", posterior.network.size, None, "")
    yield beside("setting/images", "count", len(y), None, "")
    right = lw.metrics.accuracy(probabilities(PlainNetwork(model), x), y)
    yield beside("setting/accuracy", "fraction", right, None, "", "on the training images")
    yield beside("setting/largest eigenvalue", "curvature", float(stiff[0].max()), None, "")

    ours = perturbed(posterior, more["samples"], stiff)
    note = f"{ours.samples} samples, preconditioner included"
    yield beside("ours/whole call", "seconds", ours.seconds, None, "", note)
    residual = float(ours.solution.residual.max())
    yield beside("ours/relative residual", "largest", residual, None, "", ours.solution.stopped)
    zeros = torch.zeros_like(posterior.network.weights)
    draws = ours.solution.value.mT
    yield from tested(diagnose_samples(draws, zeros, posterior.problem.precision, generator=generator(2)))
    for rtol in TOLERANCES[: 1 if setting.quick else None]:
        theirs = contour(posterior, more, rtol, stiff)
        yield from compared(ours, theirs, rtol, more["points"])
        if theirs.error <= ours.error:
            break


@contextmanager
def counted() -> Iterator[list[int]]:
    """How many columns each product with the curvature has, as long as this lasts."""
    columns, product = list[int](), GGNProduct._matmat

    def noted(curvature: GGNProduct, block: Tensor) -> Tensor:
        columns.append(block.shape[1])
        return product(curvature, block)

    with patch.object(GGNProduct, "_matmat", noted):
        yield columns


def perturbed(
    posterior: MatrixFreePosterior, samples: int, stiff: tuple[Float[Tensor, " m"], Float[Tensor, "d m"]]
) -> Drawn:
    """All samples by perturb and solve."""
    problem = replace(posterior.problem)  # with nothing built yet
    with torch.no_grad(), counted() as columns:
        start = time.perf_counter()
        b = Perturbation.drawn(problem, samples, generator=generator()).right_hand_side(problem)
        solution = posterior.solver.solve(problem, b)
        seconds = time.perf_counter() - start
        values, vectors = stiff
        exact = vectors.mT @ b / values.sqrt()[:, None]
    return drawn(posterior, solution, seconds, sum(columns) + samples, exact, stiff)


def contour(
    posterior: MatrixFreePosterior, more: Mapping[str, Any], rtol: float, stiff: tuple[Tensor, Tensor]
) -> Drawn:
    """A few samples by contour quadrature; the noise is that of ``Contour.draw`` with the same seed."""
    problem = replace(posterior.problem)  # with nothing built yet
    way = lw.solvers.Contour(points=more["points"], rtol=rtol, max_iterations=more["max_iterations"], shifts="minres")
    like = posterior.network.weights
    noise = probes.gaussian((problem.size, more["spec_samples"]), like=like, generator=generator())
    with torch.no_grad(), counted() as columns:
        start = time.perf_counter()
        solution = way.draw(problem, posterior.solver, more["spec_samples"], generator=generator())
        seconds = time.perf_counter() - start
    return drawn(posterior, solution, seconds, sum(columns), stiff[1].mT @ noise, stiff)


def drawn(
    posterior: MatrixFreePosterior,
    solution: Solution,
    seconds: float,
    products: int,
    exact: Float[Tensor, "m s"],
    stiff: tuple[Float[Tensor, " m"], Float[Tensor, "d m"]],
) -> Drawn:
    """Samples with their accuracy."""
    values, vectors = stiff
    found = values.sqrt()[:, None] * (vectors.mT @ solution.value)
    with torch.no_grad():
        squares = (solution.value * (posterior.problem.precision @ solution.value)).sum(0)
    error = float((found - exact).double().square().mean().sqrt())
    return Drawn(solution, seconds, products, error, float(squares.mean() / posterior.network.size))


def compared(ours: Drawn, theirs: Drawn, rtol: float, points: int) -> list[Row]:
    """Costs a sample of both, and their accuracy."""
    name = f"contour quadrature, Q = {points}, multi-shift MINRES, rtol {rtol:.0e}"
    note = f"{ours.samples} samples against {theirs.samples}; theirs {theirs.solution.stopped}"
    note += "" if theirs.error <= ours.error else "; not yet as accurate as ours"
    costs: dict[str, tuple[float, float]] = {
        "seconds": (ours.seconds / ours.samples, theirs.seconds / theirs.samples),
        "products": (ours.products / ours.samples, theirs.products / theirs.samples),
        "directional error": (ours.error, theirs.error),
        "mean square radius": (ours.radius, theirs.radius),
    }
    return [beside("a sample", quantity, mine, other, name, note) for quantity, (mine, other) in costs.items()]


def tested(diagnosis: Diagnosis) -> list[Row]:
    """What the sample tests found of ours."""
    verdict = "passed" if diagnosis.passed else "rejected"
    checks = [beside(f"ours/{check.name}", "p-value", check.p_value, None, "") for check in diagnosis.checks]
    lowest = beside("ours/verdict", "lowest adjusted p", min(diagnosis.adjusted), None, "", f"{verdict}: {diagnosis}")
    return [*checks, lowest]


STUDY = Study(
    rows,
    devices=True,
    options={
        "samples": (200, "samples of ours", 8),
        "spec_samples": (2, "samples of the other way"),
        "points": (10, "quadrature points"),
        "rtol": (1e-3, "relative residual of our solves"),
        "rank": (300, "rank of our preconditioner", 20),
        "max_iterations": (2000, "most MINRES iterations", 50),
        "stiff": (64, "eigenvectors along which the samples are compared", 8),
    },
)

if __name__ == "__main__":
    main({"sampling": STUDY})
