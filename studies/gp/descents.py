"""Chapter 4 on pol: primal against dual, coordinates against features, momentum, averages, optimisers.

The weights α of the mean on ``--train`` rows of ``pol``, with hyper-parameters from ``gp.Subset``; errors against the
exact ones in the norms of K and K², relative, and of predictions at the test inputs (Antorán 2024, figures 4.3 to 4.6).
Every descent is written out here, on a kernel matrix that is held: what the library has of it is ``SDD`` and
``PrimalSGD``. Steps are ``β n``; the dual's are parts of ``1.36 n / λ₁``, the longest of full batches with momentum .9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.command import Setting, Study
from benchmarks.data import generator
from benchmarks.report import Row, attempt, timed
from lapwing.gp import Subset
from lapwing.gp.diagnosis import error_norms
from lapwing.linalg import Dense
from studies.gp.setting import split, start

ROWS, BATCH, FEATURES, MOMENTUM = 2000, 128, 100, 0.9
COLUMNS = ("k_norm", "k2_norm", "rmse_to_exact", "rmse", "seconds")
OPTIONS: Mapping[str, tuple[Any, str]] = {"steps": (5000, "steps of every descent")}
Estimator = Literal["all", "coordinates", "features", "partial", "primal"]
Average = Literal["geometric", "arithmetic", "none"]


@dataclass(frozen=True, eq=False)
class System:
    """``(K + ν I) α = y``, its solution, and test inputs' rows of K."""

    matrix: Tensor
    noise: float
    target: Tensor
    across: Tensor
    truth: Tensor
    features: Callable[[torch.Generator], Tensor]

    def errors(self, alpha: Tensor, exact: Tensor) -> Row:
        """Of some weights."""
        norms, errors = error_norms(Dense(self.matrix), alpha, exact), self.across @ alpha - self.truth
        off, rmse = (float(e.square().mean().sqrt()) for e in (self.across @ (alpha - exact), errors))
        return {"k_norm": norms.kernel, "k2_norm": norms.squared, "rmse_to_exact": off, "rmse": rmse}


@dataclass(frozen=True)
class Descent:
    """How ``α`` is descended to.

    Args:
        part: Of the comparison.
        method: What it is called.
        step: ``β n``; for the optimisers of PyTorch their rate.
        estimator: Of the gradient.
        momentum: Nesterov's.
        average: Of the iterates.
        optimiser: One of ``torch.optim`` instead of Nesterov's method.
    """

    part: str
    method: str
    step: float
    estimator: Estimator = "coordinates"
    momentum: float = MOMENTUM
    average: Average = "geometric"
    optimiser: str = ""

    def run(self, system: System, steps: int, source: torch.Generator) -> Tensor:
        """The weights after so many steps."""
        n = len(system.target)
        alpha, velocity = torch.zeros_like(system.target), torch.zeros_like(system.target)
        total, forget, rate = torch.zeros_like(alpha), min(1.0, 100 / steps), self.step / n
        theirs = getattr(torch.optim, self.optimiser)([alpha], lr=self.step) if self.optimiser else None
        for step in range(steps):
            gradient = self.gradient(system, alpha + self.momentum * velocity if theirs is None else alpha, source)
            if theirs is None:
                velocity = self.momentum * velocity - rate * gradient
                alpha = alpha + velocity
            else:
                alpha.grad = gradient / n
                theirs.step()
            if self.average == "geometric":
                total.lerp_(alpha, forget)
            elif self.average == "arithmetic" and step >= steps // 2:
                total += (alpha - total) / (step - steps // 2 + 1)
        if not bool(alpha.isfinite().all()):
            raise FloatingPointError("the descent diverged")
        return alpha if self.average == "none" else total

    def gradient(self, system: System, at: Tensor, source: torch.Generator) -> Tensor:
        """An unbiased estimate of the dual's gradient, or of the primal's over the noise."""
        n, k = len(at), system.matrix
        rest = system.noise * at - system.target
        if self.estimator == "all":
            return rest + k @ at
        if self.estimator == "primal":
            return k @ (rest + k @ at)
        if self.estimator == "features":
            phi = system.features(source)
            return rest + phi @ (phi.mT @ at)
        index = torch.randperm(n, generator=source)[:BATCH]
        some = n / len(index) * (k[index] @ at)
        if self.estimator == "partial":
            return rest.index_add(0, index, some)
        return torch.zeros_like(at).index_add_(0, index, some + n / len(index) * rest[index])


def descents(longest: float, primal: float) -> Iterator[Descent]:
    """All that are compared.

    Args:
        longest: ``β n`` of the longest stable step of the dual.
        primal: Of the primal.
    """
    best = Descent("average", "geometric", 0.5 * longest)
    for part in (0.01, 0.1, 0.9):
        yield Descent("objective", f"dual, {part:g} of its longest", part * longest, "all")
        yield Descent("objective", f"primal, {part:g} of its longest", part * primal, "primal")
    for estimator in ("coordinates", "features", "partial"):
        for part in (0.005, 0.05, 0.5):
            yield Descent("estimator", f"{estimator}, {part:g} of the longest", part * longest, estimator)
    yield replace(best, part="momentum", method="0.9")
    yield replace(best, part="momentum", method="0", momentum=0.0)
    yield best
    yield replace(best, method="arithmetic", average="arithmetic")
    yield replace(best, method="none", average="none")
    yield replace(best, part="optimiser", method="Nesterov")
    for name, rate in (("Adam", 0.05), ("Adagrad", 10.0), ("RMSprop", 0.05)):
        yield Descent("optimiser", name, rate, optimiser=name)


def rows(setting: Setting) -> Iterator[Row]:
    """A row a descent and split."""
    steps = 20 if setting.quick else setting.more["steps"]
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # the first one imports for seconds, which no method owes
    for number in setting.repeats:
        system = tuned_system(setting, number)
        n, values = len(system.target), torch.linalg.eigvalsh(system.matrix.double())
        top = float(values[-1]) + system.noise
        stable = 2 * (1 + MOMENTUM) / (1 + 2 * MOMENTUM) * n
        exact = torch.linalg.solve((system.matrix + system.noise * torch.eye(n)).double(), system.target.double())
        for descent in descents(stable / top, stable / (top * float(values[-1]))):
            work = partial(descent.run, system, steps, generator(number))
            (alpha, failure), seconds = timed(partial(attempt, work))
            case: Row = {"part": descent.part, "method": descent.method, "rows": n, "steps": steps, "seed": number}
            case |= {"step": descent.step, "failure": failure.partition(":")[0]}
            yield case if alpha is None else case | system.errors(alpha, exact.float()) | {"seconds": seconds}


def tuned_system(setting: Setting, number: int) -> System:
    """On a split of pol."""
    data = split(setting, "pol", number, ROWS)
    (x, y), (new, truth) = data.train, data.test
    process = Subset(40 if setting.quick else 2000, seed=number).tune(start(x.shape[1]).fit((x, y)))
    kernel, count = process.kernel, 10 if setting.quick else FEATURES

    def features(source: torch.Generator) -> Tensor:
        return kernel.features(count, x.float(), source)(x.float())

    whole, across = kernel(x, x).float(), kernel(new, x).float()
    return System(whole, 1 / process.likelihood.noise, y.float(), across, truth.float(), features)


STUDY = Study(rows, COLUMNS, seeds=3, needs="the UCI sets", options=OPTIONS)
