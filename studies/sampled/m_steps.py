"""Three ways to a larger evidence, and two estimators of the effective dimension (Antorán 2024, figures 6.1 to 6.3).

A perceptron with layer norms is trained on a line: 400 inputs in two clusters, a function of a Matérn-3/2 process. Its
tangent model in the 2700 weights that are no biases is Gaussian, so that modes, evidence and the effective dimension of
every prior precision have a closed form in the eigenbasis of the kernel ``b J Jᵀ``. Each way takes the mode and the
covariance of the posterior at one precision and says the next:

*MacKay*: ``a ← γ / |w*|²``. *Bound at the mode*: the a that maximises the evidence at w*, w* held fixed. *Decoupled
bound*: the a that maximises the evidence lower bound with w* and Λ held fixed, ``a ← d / (|w*|² + tr Λ⁻¹)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import Pair, generator, standardised, uniform
from benchmarks.networks import jacobian, seeded
from benchmarks.report import Row
from benchmarks.training import train
from studies.published import beside_published

SOURCE = "Antorán 2024"
NOISE = 0.15
SCALE = 0.5
CLUSTERS = ((-2.0, -1.0), (0.5, 2.5))
EACH = 200
"""Standard deviation of the noise, lengthscale, where the inputs lie, and how many in each cluster."""

WIDTH = 50
EPOCHS = 200
STARTS = (500.0, 5.0)
NEAR = 0.1
MOST = 500
"""Nats that the evidence may lack of its largest where steps have reached it, and most steps."""

SAMPLES, REPEATS = 8, 1000
TOGETHER = 100
"""Draws an estimate, estimates, and estimates that are drawn together."""

COLUMNS = ("steps", "first", "lacking", "best", "gamma", "mean", "variance", "negative")

STEPS = {"MacKay": 2, "bound at the mode": 5, "decoupled bound": 100}
VARIANCES = {"outputs": 9.16, "weights": 654.19}
"""What the source reports: steps from 500, of which the last is about so, and variances of the two estimators."""


@dataclass(frozen=True, eq=False)
class Line:
    """The tangent model in the eigenbasis of its kernel.

    Args:
        eigenvalues: Of ``M = b JᵀJ`` where they are not 0, which are those of ``b J Jᵀ``.
        targets: ``√b (y - f + J w̃)`` in that basis.
        weights: How many, d.
    """

    eigenvalues: Float[Tensor, " n"]
    targets: Float[Tensor, " n"]
    weights: int

    @classmethod
    def of(cls, model: nn.Module, data: Pair, precision: float) -> Line:
        """Of a network with one output, at its trained weights.

        Args:
            model: The network.
            data: Inputs and targets ``[n, 1]``.
            precision: b, of the noise.
        """
        x, y = data
        rows = jacobian(model, x)
        trained = torch.cat([value.detach().flatten() for value in model.parameters() if value.requires_grad])
        with torch.no_grad():
            shifted = y[:, 0] - model(x)[:, 0] + rows @ trained
        eigenvalues, basis = torch.linalg.eigh(precision * rows @ rows.mT)
        return cls(eigenvalues.clamp_min(0), basis.mT @ shifted * precision**0.5, rows.shape[1])

    def evidence(self, a: float) -> float:
        """``log N(y; 0, J A⁻¹ Jᵀ + b⁻¹)`` but for a constant, nats."""
        variances = 1 + self.eigenvalues / a
        return float(-0.5 * (variances.log() + self.targets.square() / variances).sum())

    def square_norm(self, a: float) -> float:
        """``|w*|²`` of the mode."""
        return float((self.eigenvalues * (self.targets / (self.eigenvalues + a)).square()).sum())

    def gamma(self, a: float) -> float:
        """The effective dimension."""
        return float((self.eigenvalues / (self.eigenvalues + a)).sum())

    def best(self) -> float:
        """The precision of largest evidence, at which ``a |w*|² = γ``."""
        return root(lambda a: self.gamma(a) - a * self.square_norm(a))

    def by_mackay(self, a: float) -> float:
        """``γ / |w*|²``."""
        return self.gamma(a) / self.square_norm(a)

    def by_bound_at_mode(self, a: float) -> float:
        """The maximiser of ``-½ a |w*|² - ½ log det(I + M / a)`` with w* held fixed."""
        norm = self.square_norm(a)
        return root(lambda there: self.gamma(there) - there * norm)

    def by_decoupled_bound(self, a: float) -> float:
        """The maximiser of ``½ d log a - ½ a (|w*|² + tr Λ⁻¹)``: the step of expectation maximisation."""
        trace = (self.weights - self.gamma(a)) / a
        return self.weights / (self.square_norm(a) + trace)


def root(lacking: Callable[[float], float]) -> float:
    """Where a function that falls with the precision is 0, by bisection of its logarithm.

    Example:
        >>> round(root(lambda a: 3 - a), 6)
        3.0
    """
    low = -20.0
    high = 20.0
    for _ in range(60):
        middle = (low + high) / 2
        if lacking(math.exp(middle)) > 0:
            low = middle
        else:
            high = middle
    return math.exp(low)


WAYS: dict[str, Callable[[Line, float], float]] = {
    "MacKay": Line.by_mackay,
    "bound at the mode": Line.by_bound_at_mode,
    "decoupled bound": Line.by_decoupled_bound,
}


def toy(seed: int, each: int = EACH) -> tuple[Pair, float]:
    """Inputs and targets, standardised, and the precision of their noise.

    Args:
        seed: Of inputs, function and noise.
        each: Inputs in each cluster.
    """
    source = generator(seed)
    x = torch.cat([uniform(each, low, high, source) for low, high in CLUSTERS])
    distances = 3**0.5 * (x - x.mT).abs() / SCALE
    covariance = (1 + distances) * (-distances).exp()
    root = torch.linalg.cholesky(covariance + 1e-8 * torch.eye(len(x)))
    noise = torch.randn(len(x), 2, generator=source, dtype=torch.float64)
    y = root @ noise[:, :1] + NOISE * noise[:, 1:]
    return (standardised(x, x), standardised(y, y)), float(y.std() / NOISE) ** 2


def network(seed: int, width: int = WIDTH) -> nn.Module:
    """Two hidden layers, each with a layer norm behind; biases keep their trained values in its tangent model."""

    def layers() -> nn.Module:
        hidden = [[nn.Linear(inputs, width), nn.ReLU(), nn.LayerNorm(width)] for inputs in (1, width)]
        return nn.Sequential(*chain.from_iterable(hidden), nn.Linear(width, 1))

    return seeded(layers, seed).double()


def trained(seed: int, data: Pair, *, width: int = WIDTH, epochs: int = EPOCHS) -> nn.Module:
    """The network of a seed; its biases are frozen when it is trained."""
    model = train(network(seed, width), *data, epochs=epochs, loss=nn.functional.mse_loss, seed=seed)
    for name, value in model.named_parameters():
        value.requires_grad_(not name.endswith("bias"))
    return model


def rows(setting: Setting) -> Iterator[Row]:
    """Every way from every start, and the estimators where the evidence is largest, on every seed."""
    size = {"width": 10, "epochs": 5} if setting.quick else {}
    for seed in setting.repeats:
        data, precision = toy(seed, 20 if setting.quick else EACH)
        model = trained(seed, data, **size)
        line = Line.of(model, data, precision)
        common: Row = {"seed": seed, "weights": line.weights}
        for start in STARTS:
            for name in WAYS:
                case: Row = {"part": f"from {start:g}", "way": name}
                yield case | common | followed(line, WAYS[name], start)
        repeats = 20 if setting.quick else REPEATS
        for row in estimators(model, data, precision, line.best(), repeats, seed):
            yield {"part": "estimators"} | row | common


def followed(line: Line, way: Callable[[Line, float], float], start: float) -> Row:
    """How many steps lead to the largest evidence, where the first leads, and what the evidence lacks there."""
    best = line.best()
    largest = line.evidence(best)
    path = [start]
    while largest - line.evidence(path[-1]) > NEAR and len(path) <= MOST:
        path.append(way(line, path[-1]))
    first = path[1] if len(path) > 1 else start
    row: Row = {"best": best, "steps": len(path) - 1, "first": first, "lacking": largest - line.evidence(first)}
    return row | {"path": path[:20]}


def estimators(model: nn.Module, data: Pair, precision: float, a: float, repeats: int, seed: int) -> Iterator[Row]:
    """Mean and variance of both estimators over repeated exact draws of the posterior.

    Args:
        model: The network.
        data: Its training data.
        precision: b, of the noise.
        a: Prior precision.
        repeats: Estimates.
        seed: Of the draws.
    """
    recipe = lw.Laplace(
        lw.Gaussian(precision), prior=lw.Isotropic(a), structure=lw.Full(view="functions"), weights=lw.Names("*weight")
    )
    posterior = recipe.fit(model, data)
    features = jacobian(model, data[0])
    source = generator(seed)
    found: dict[str, list[Tensor]] = {"outputs": [], "weights": []}
    for together in torch.arange(repeats).split(TOGETHER):
        draws = posterior.sample(len(together) * SAMPLES, generator=source) - posterior.network.weights
        outputs = precision * (draws @ features.mT).square().sum(1)
        weights = draws.shape[1] - a * draws.square().sum(1)
        found["outputs"].append(outputs.view(-1, SAMPLES).mean(1))
        found["weights"].append(weights.view(-1, SAMPLES).mean(1))
    gamma = posterior.effective_dimension()
    for name, values in found.items():
        estimates = torch.cat(values)
        row: Row = {"estimator": name, "gamma": float(gamma), "mean": float(estimates.mean())}
        yield row | {"variance": float(estimates.var()), "negative": float((estimates < 0).double().mean())}


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """Means over the seeds beside what the source reports."""
    means = [row for row in found if row.get("summary")]
    for name, steps in STEPS.items():
        for row in means:
            if row["part"] == "from 500" and row.get("way") == name:
                place = f"{SOURCE}, figure 6.1"
                yield beside_published(f"steps to the largest evidence from 500, {name}", row["steps"], steps, place)
    for name, variance in VARIANCES.items():
        for row in means:
            if row.get("estimator") == name:
                quantity = f"variance of γ from {SAMPLES} draws of the {name}"
                yield beside_published(quantity, row["variance"], variance, f"{SOURCE}, figure 6.3")
