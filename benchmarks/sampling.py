"""Posterior samples of a digit CNN of 15 thousand weights: perturb and solve, against contour quadrature.

    python -m benchmarks.sampling --json FILE [--data DIR]

Both draw from N(0, Λ⁻¹) for the same Λ, at prior precision 0.1. Ours: preconditioned block conjugate gradients on all
samples at once. The other: contour-integral quadrature with unpreconditioned multi-shift MINRES, as its source has it
(Brack 2023, algorithms 1 to 3), on fewer samples, its tolerance tightened until its samples are as accurate as ours
along the stiff eigenvectors u of Λ, where the exact coordinate is known: z = uᵀ b / √λ for b = Λ δ, and uᵀ ε for
δ = Λ^-½ ε.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

import lapwing as lw
from benchmarks.data import mnist
from benchmarks.measure import Row, table, write_json
from benchmarks.training import accuracy, digit_cnn, digits, train
from lapwing.evaluation.diagnosis import Diagnosis, diagnose_samples
from lapwing.ground import probes
from lapwing.ground.results import Solution
from lapwing.linalg import FunctionOperator, Operator
from lapwing.linalg.eigenpairs import top_eigenpairs
from lapwing.linear.problem import Problem
from lapwing.posteriors import MatrixFreePosterior

ALPHA = 0.1
TOLERANCES = (1e-3, 1e-4, 1e-5, 1e-6)
STIFF = 64


@dataclass
class Counted:
    """An operator, and how many columns it multiplied."""

    inner: Operator
    columns: int = field(default=0)

    def operator(self) -> Operator:
        """The same operator, counted."""

        def product(block: Tensor) -> Tensor:
            self.columns += block.shape[1]
            return self.inner @ block

        return FunctionOperator(product, product, self.inner.shape, torch.empty(0, dtype=self.inner.dtype))


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


def main() -> None:
    """Train, draw both ways, test the samples, write the report."""
    args = arguments()
    device = torch.device(args.device)
    split = mnist(args.data) if args.data else digits()
    x, y = split.x_train[: args.images].to(device), split.y_train[: args.images].to(device)
    model = digit_cnn(28 if args.data else 8).to(device)
    train(model, x, y, epochs=args.epochs, weight_decay=ALPHA / len(y))
    posterior = fitted(model, x, y, args)
    eigenpairs = top_eigenpairs(posterior.problem.precision, STIFF, generator=torch.Generator().manual_seed(1))
    stiff = (eigenpairs.values.to(x), eigenpairs.vectors)
    say(f"{posterior}; accuracy {accuracy(model, x, y):.4f}; largest eigenvalue {float(stiff[0].max()):.3g}")

    ours = perturbed(posterior, args.samples, stiff)
    say(f"ours: {ours.seconds:.1f} s, {ours.products} products, error {ours.error:.2e}")
    diagnosis = diagnose_samples(
        ours.solution.value.mT,
        torch.zeros_like(posterior.network.weights),
        posterior.problem.precision,
        generator=torch.Generator().manual_seed(2),
    )
    say(str(diagnosis))
    facts = [
        Row("setting/weights", "count", posterior.network.size, None, ""),
        Row("setting/images", "count", len(y), None, ""),
        Row("setting/accuracy", "fraction", accuracy(model, x, y), None, "", "on the training images"),
        Row("setting/largest eigenvalue", "curvature", float(stiff[0].max()), None, ""),
        Row("ours/whole call", "seconds", ours.seconds, None, "", f"{args.samples} samples, preconditioner included"),
        Row("ours/relative residual", "largest", float(ours.solution.residual.max()), None, "", ours.solution.stopped),
        *tested(diagnosis),
    ]
    rows: list[Row] = []
    for rtol in TOLERANCES:
        theirs = contour(posterior, args, rtol, stiff)
        say(f"contour {rtol:.0e}: {theirs.seconds:.1f} s, {theirs.products} products, error {theirs.error:.2e}")
        rows += compared(ours, theirs, rtol, args)
        write_json(args.json, [*rows, *facts])
        if theirs.error <= ours.error:
            break
    say(table([*rows, *facts]))


def fitted(model: torch.nn.Module, x: Tensor, y: Tensor, args: argparse.Namespace) -> MatrixFreePosterior:
    """The posterior by products."""
    solver = lw.CG(rtol=args.rtol, preconditioner=lw.PivotedCholesky(args.rank), max_bytes=2**31)
    recipe = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(ALPHA), structure=lw.MatrixFree(solver))
    posterior = recipe.fit(model, (x, y))
    assert isinstance(posterior, MatrixFreePosterior)
    return posterior


def counted(posterior: MatrixFreePosterior) -> tuple[Problem, Counted]:
    """The posterior's problem with nothing built yet, and the count of its products."""
    count = Counted(posterior.problem.curvature)
    return replace(posterior.problem, curvature=count.operator()), count


def perturbed(
    posterior: MatrixFreePosterior, samples: int, stiff: tuple[Float[Tensor, " m"], Float[Tensor, "d m"]]
) -> Drawn:
    """All samples by perturb and solve."""
    problem, count = counted(posterior)
    with torch.no_grad():
        start = time.perf_counter()
        b = problem.perturbation(samples, generator=torch.Generator().manual_seed(0)).right_hand_side(problem)
        solution = posterior.solver.solve(problem, b)
        seconds = time.perf_counter() - start
        values, vectors = stiff
        exact = vectors.mT @ b / values.sqrt()[:, None]
    return drawn(posterior, solution, seconds, count.columns + samples, exact, stiff)


def contour(
    posterior: MatrixFreePosterior, args: argparse.Namespace, rtol: float, stiff: tuple[Tensor, Tensor]
) -> Drawn:
    """A few samples by contour quadrature; the noise is that of ``Contour.draw`` with the same seed."""
    problem, count = counted(posterior)
    way = lw.Contour(points=args.points, rtol=rtol, max_iterations=args.max_iterations, shifts="minres")
    like = posterior.network.weights
    noise = probes.gaussian((problem.size, args.spec_samples), like=like, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        start = time.perf_counter()
        generator = torch.Generator().manual_seed(0)
        solution = way.draw(problem, posterior.solver, args.spec_samples, generator=generator)
        seconds = time.perf_counter() - start
    return drawn(posterior, solution, seconds, count.columns, stiff[1].mT @ noise, stiff)


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


def compared(ours: Drawn, theirs: Drawn, rtol: float, args: argparse.Namespace) -> list[Row]:
    """Costs a sample of both, and their accuracy."""
    name = f"contour quadrature, Q = {args.points}, multi-shift MINRES, rtol {rtol:.0e}"
    note = f"{ours.samples} samples against {theirs.samples}; theirs {theirs.solution.stopped}"
    note += "" if theirs.error <= ours.error else "; not yet as accurate as ours"
    costs: dict[str, tuple[float, float]] = {
        "seconds": (ours.seconds / ours.samples, theirs.seconds / theirs.samples),
        "products": (ours.products / ours.samples, theirs.products / theirs.samples),
        "directional error": (ours.error, theirs.error),
        "mean square radius": (ours.radius, theirs.radius),
    }
    return [Row("a sample", quantity, mine, other, name, note) for quantity, (mine, other) in costs.items()]


def tested(diagnosis: Diagnosis) -> list[Row]:
    """What the sample tests found of ours."""
    verdict = "passed" if diagnosis.passed else "rejected"
    checks = [Row(f"ours/{check.name}", "p-value", check.p_value, None, "") for check in diagnosis.checks]
    lowest = Row("ours/verdict", "lowest adjusted p", min(diagnosis.adjusted), None, "", f"{verdict}: {diagnosis}")
    return [*checks, lowest]


def say(text: str) -> None:
    """A line for whoever watches."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampling", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="report to write")
    parser.add_argument("--data", type=Path, help="data folder with MNIST; without it scikit-learn's digits")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--images", type=int, default=5000, help="training images")
    parser.add_argument("--epochs", type=int, default=8, help="passes of training")
    parser.add_argument("--samples", type=int, default=200, help="samples of ours")
    parser.add_argument("--spec-samples", type=int, default=2, help="samples of the other way")
    parser.add_argument("--points", type=int, default=10, help="quadrature points")
    parser.add_argument("--rtol", type=float, default=1e-3, help="relative residual of our solves")
    parser.add_argument("--rank", type=int, default=300, help="rank of our preconditioner")
    parser.add_argument("--max-iterations", type=int, default=2000, help="most MINRES iterations")
    return parser.parse_args()


if __name__ == "__main__":
    main()
