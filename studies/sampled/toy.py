"""The 1-D toy: three M-steps, three E-steps, two estimators of the effective dimension, and where to take the evidence.

Every seed draws data and trains a network of 2,700 weights; for E-steps fewer data, and one of 480. The noise is known.
What EM should find is the maximum of the evidence of the tangent model, written out here from the eigenvalues of JJᵀ.
How fast it gets there differs between networks: with the norms behind the ReLUs, MacKay's update takes three to seven
steps from 500 instead of four or five.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from scipy.optimize import brentq, minimize_scalar
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import Pair, generator
from benchmarks.networks import jacobian
from benchmarks.report import Row, tried
from lapwing.posteriors import MatrixFreePosterior, Posterior
from lapwing.predictive import Regression
from studies.sampled.matern import WIDTH, Toy, network, train

STARTS = (500.0, 5.0)
NEAR = 0.05
"""Within which the optimum counts as reached."""

DRAWS = 512
"""Behind E-steps: EM's fixed point then varies by about 2 % with their noise, which both solvers share."""

POINTS, UNITS = 50, 20
"""On each side, and in each layer, for E-steps: so many descents of so many draws are minutes, not hours."""

GROUP, REPEATS = 8, 500
"""Draws behind one estimate of the effective dimension, and estimates whose variance is taken."""

COLUMNS = (
    "optimum", "precision", "ratio", "steps_to_optimum", "steps", "seconds", "gamma", "mean", "variance", "negative",
    "sd_train", "sd_gap", "nll_sides", "nll_gap",
)  # fmt: skip


@dataclass(frozen=True)
class Tangent:
    """The tangent model of a network in the eigenvectors of JJᵀ.

    Args:
        values: Its eigenvalues.
        target: ``y - f + J w̃``.
        weights: How many there are.
        noise: Noise precision b.
    """

    values: Tensor
    target: Tensor
    weights: int
    noise: float

    @classmethod
    def of(cls, model: nn.Module, pair: Pair, noise: float) -> Tangent:
        """That of a network at its trained weights."""
        x, y = pair
        rows, trained = jacobian(model, x), nn.utils.parameters_to_vector(model.parameters()).detach()
        values, vectors = torch.linalg.eigh(rows @ rows.mT)
        target = vectors.mT @ ((y - model(x).detach())[:, 0] + rows @ trained)
        return cls(values.clamp_min(0), target, len(trained), noise)

    def optimum(self) -> float:
        """The prior precision a that maximises ``log N(y - f + J w̃; 0, JJᵀ / a + I / b)``."""

        def loss(log_precision: float) -> float:
            variance = self.values * math.exp(-log_precision) + 1 / self.noise
            return float((variance.log() + self.target.square() / variance).sum())

        grid = torch.linspace(-10, 14, 97).tolist()
        best = min(grid, key=loss)
        return math.exp(minimize_scalar(loss, bounds=(best - 0.25, best + 0.25), method="bounded").x)

    def gamma(self, precision: float) -> float:
        """The effective dimension at a prior precision."""
        return float((self.values / (self.values + precision / self.noise)).sum())

    def norm(self, precision: float) -> float:
        """``|w*|²`` of the mode at a prior precision."""
        return float((self.values * self.target.square() / (self.values + precision / self.noise).square()).sum())


def mackay(tangent: Tangent, precision: float) -> float:
    """``γ / |w*|²``: the step that the library takes."""
    return tangent.gamma(precision) / tangent.norm(precision)


def bound(tangent: Tangent, precision: float) -> float:
    """The maximum of the evidence for the present w*, where ``γ(a) = a |w*|²``: it never lowers the evidence."""
    norm = tangent.norm(precision)
    return math.exp(brentq(lambda log: tangent.gamma(math.exp(log)) - math.exp(log) * norm, -30.0, 40.0))


def decoupled(tangent: Tangent, precision: float) -> float:
    """``d / (|w*|² + tr Λ⁻¹)``, the maximum of the bound that keeps w* and Λ (Antorán 2024, equation 3.5)."""
    trace = (tangent.weights - tangent.gamma(precision)) / precision
    return tangent.weights / (tangent.norm(precision) + trace)


M_STEPS: dict[str, Callable[[Tangent, float], float]] = {"mackay": mackay, "bound": bound, "elbo": decoupled}


@dataclass(frozen=True)
class Fitted:
    """A seed's data and network, its tangent model and the prior precision that maximises the evidence of that."""

    toy: Toy
    model: nn.Module
    tangent: Tangent
    optimum: float

    @classmethod
    def of(cls, setting: Setting, seed: int, points: int = 200, width: int = WIDTH) -> Fitted:
        """What a seed draws and trains."""
        toy = Toy.draw(seed, points=10 if setting.quick else points)
        model = network(seed, width=6 if setting.quick else width)
        train(model, toy.train, 50 if setting.quick else 1500)
        tangent = Tangent.of(model, toy.train, toy.precision)
        return cls(toy, model, tangent, tangent.optimum())

    def posterior(self, precision: float, structure: Any) -> Posterior:
        """The posterior at a prior precision."""
        recipe = lw.Laplace(lw.Gaussian(self.toy.precision), prior=lw.Isotropic(precision), structure=structure)
        return recipe.fit(self.model, self.toy.train)


def rows(setting: Setting) -> Iterator[Row]:
    """Every part on every seed."""
    for seed in setting.repeats:
        fitted, smaller = Fitted.of(setting, seed), Fitted.of(setting, seed, POINTS, UNITS)
        for name in setting.among(PARTS):
            for row in PARTS[name](smaller if name == "e-steps" else fitted, setting):
                yield {"part": name, "seed": seed} | row


def m_steps(fitted: Fitted, setting: Setting) -> Iterator[Row]:
    """How many steps each M-step takes to the optimum, from above and from below."""
    for start in STARTS:
        for name, step in M_STEPS.items():
            path = [start]
            while len(path) <= (2 if setting.quick else 40):
                path.append(step(fitted.tangent, path[-1]))
                if abs(math.log(path[-1] / path[-2])) < 1e-3:
                    break
            yield {"m_step": name, "start": f"{start:g}", "optimum": fitted.optimum} | told(path, fitted.optimum)


def e_steps(fitted: Fitted, setting: Setting) -> Iterator[Row]:
    """Where MacKay's update ends with exact covariances, and with draws by two solvers."""
    samples, steps = (4, 2) if setting.quick else (DRAWS, 20)
    sgd = lw.SGD(epochs=10 if setting.quick else 3000, batch=2 * POINTS, momentum=0.98)
    solvers = {"CG": lw.CG(rtol=1e-6, preconditioner=lw.LowRank(5 if setting.quick else 60)), "SGD": sgd}
    yield {"e_step": "exact"} | climbed(fitted, STARTS[0], lw.Full(view="functions"), lw.EM(noise=False, steps=steps))
    for name, solver in solvers.items():
        method = lw.EM(noise=False, samples=samples, solver=solver, steps=steps)
        yield {"e_step": name, "samples": samples} | climbed(fitted, STARTS[0], lw.MatrixFree(solver), method)


def climbed(fitted: Fitted, start: float, structure: Any, method: Any) -> Row:
    """What EM makes of a start: its trace, and after how many steps it is near the optimum for good."""
    posterior = fitted.posterior(start, structure)
    tuned, row = tried(lambda: lw.tune(posterior, method))
    row["optimum"] = fitted.optimum
    if tuned is None:
        return row
    trace = [step.prior_precision[0] for step in tuned.trace]
    final = float(tuned.prior_precisions[0])
    return row | told(trace if trace[-1] == final else [*trace, final], fitted.optimum)


def told(path: list[float], optimum: float) -> Row:
    """Where a path of precisions ends, and after how many steps it is near the optimum for good."""
    far = [number for number, value in enumerate(path) if abs(math.log(value / optimum)) > math.log1p(NEAR)]
    reached = far[-1] + 1 if far else 0
    row: Row = {"precision": path[-1], "ratio": path[-1] / optimum, "steps": len(path) - 1, "trace": path}
    return row | {"steps_to_optimum": reached if reached < len(path) else None}


def estimators(fitted: Fitted, setting: Setting) -> Iterator[Row]:
    """Mean and variance of both estimators of the effective dimension, each from a few exact draws."""
    repeats = 20 if setting.quick else REPEATS
    exact = fitted.posterior(fitted.optimum, lw.Full(view="weights"))
    assert hasattr(exact, "sample")
    draws = exact.sample(GROUP * repeats, generator=generator()) - exact.network.weights
    products = fitted.posterior(fitted.optimum, lw.MatrixFree(lw.CG()))
    assert isinstance(products, MatrixFreePosterior)
    with torch.no_grad():
        parts = [(part.mT * (products.problem.curvature @ part.mT)).sum(0) for part in draws.split(500)]
    by_outputs, by_weights = torch.cat(parts), draws.shape[1] - fitted.optimum * draws.square().sum(1)
    for name, values in {"outputs": by_outputs, "weights": by_weights}.items():
        means = values.view(repeats, GROUP).mean(1)
        found = {"mean": float(means.mean()), "variance": float(means.var())}
        found |= {"negative": float((means < 0).double().mean())}
        yield {"estimator": name, "draws": GROUP, "gamma": float(exact.effective_dimension())} | found


def places(fitted: Fitted, setting: Setting) -> Iterator[Row]:
    """What the evidence at the trained weights and at the mode of the tangent model lead to."""
    methods = {
        "weights": lw.EvidenceGradient(noise=False, at="weights"),
        "mode": lw.EM(noise=False, steps=3 if setting.quick else 50),
    }
    for at, method in methods.items():
        tuned = lw.tune(fitted.posterior(1.0, lw.Full(view="functions")), method)
        row: Row = {"at": at, "precision": float(tuned.prior_precisions[0]), "optimum": fitted.optimum}
        row |= {"gamma": float(tuned.effective_dimension()), "sd_train": spread(tuned, fitted.toy.train[0])}
        row |= {"sd_gap": spread(tuned, fitted.toy.gap[0])}
        for name, pair in {"sides": fitted.toy.sides, "gap": fitted.toy.gap}.items():
            row[f"nll_{name}"] = -float(tuned.predict(pair[0]).log_prob(pair[1]).mean())
        yield row


PARTS: dict[str, Callable[[Fitted, Setting], Iterator[Row]]] = {
    "e-steps": e_steps,
    "m-steps": m_steps,
    "estimators": estimators,
    "places": places,
}


def spread(posterior: Posterior, x: Tensor) -> float:
    """Mean standard deviation of the output, noise left out; the training targets have 1."""
    prediction = posterior.predict(x)
    assert isinstance(prediction, Regression)
    return float(prediction.outputs.std.mean())
