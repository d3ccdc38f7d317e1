"""Ten UCI sets: the two lines of the README for a trained perceptron, beside what anybody would compare them with.

    posterior = lw.Laplace(lw.Gaussian()).fit(model, (x, y))
    posterior = lw.tune(posterior)

A perceptron of two hidden layers, 50 tanh units each, is trained on standardised data by L-BFGS with a little weight
decay, the same for every set. Beside it: the network with the noise of its residuals, and ``BayesianRidge`` on the
standardised inputs. Rows are scored on a held-out tenth, in units of the standardised target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.data import Pair, generator, standardised
from benchmarks.networks import perceptron
from benchmarks.report import Row, timed
from benchmarks.training import minimise

SETS = ("yacht", "energy", "housing", "concrete", "wine", "bike", "elevators", "pol", "protein", "keggdirected")
ROWS = 2000
COVERAGE, NOISE = (0.9, 0.99), 1.5
"""What intervals of 95 % should cover, and the factor within which the noise should be that of held-out residuals."""

COLUMNS = ("nll", "rmse", "coverage", "noise_ratio", "seconds")


@dataclass(frozen=True, eq=False)
class Split:
    """Standardised inputs ``[n, d]`` and targets ``[n, 1]``, by the means and deviations of the training part."""

    train: Pair
    test: Pair


def split(path: Path, number: int, most: int | None = ROWS) -> Split:
    """A split of a set; of a large one that of 2000 rows.

    Args:
        path: Has ``x``, ``y`` and ``test_mask``.
        number: Column of ``test_mask``.
        most: Rows, at most; ``None`` for all.
    """
    with np.load(path) as held:
        x, y, test = (torch.as_tensor(held[name]) for name in ("x", "y", "test_mask"))
    kept = torch.randperm(len(x), generator=generator())[:most]
    x, y, test = x[kept].double(), y[kept].double().view(-1, 1), test[kept, number]
    x, y = (standardised(part, part[~test]) for part in (x, y))
    return Split((x[~test], y[~test]), (x[test], y[test]))


def trained(data: Pair, seed: int, *, units: int = 50, iterations: int = 1000, decay: float = 3e-3) -> nn.Sequential:
    """A perceptron at a minimum of ``mean squared error + decay |θ|²``.

    Args:
        data: Inputs and targets.
        seed: Of the initial weights.
        units: Units of each of the two hidden layers.
        iterations: Most iterations of L-BFGS.
        decay: Weight decay.
    """
    x, y = data
    model = perceptron(x.shape[1], units, units, 1, seed=seed).double()

    def loss() -> Tensor:
        penalty = sum(value.square().sum() for value in model.parameters())
        return (model(x) - y).square().mean() + decay * penalty

    minimise(model, loss, max_iter=iterations, history_size=20, tolerance_change=1e-14)
    return model.eval()


def scores(mean: Tensor, std: Tensor, noise: float, y: Tensor) -> Row:
    """NLL in nats, RMSE, coverage of 95 % intervals, and the noise over the root mean square of the residuals."""
    z = (y - mean) / std
    rmse = float((y - mean).square().mean().sqrt())
    nll = float((0.5 * z.square() + std.log()).mean()) + 0.5 * math.log(2 * math.pi)
    covered = float((z.abs() < 1.959964).double().mean())
    return {"nll": nll, "rmse": rmse, "coverage": covered, "noise": noise, "noise_ratio": noise / rmse}


def rows(setting: Setting) -> Iterator[Row]:
    """Three rows a set and split."""
    for name in setting.among(SETS, SETS[:2] if setting.quick else ()):
        for number in setting.repeats:
            for row in compared(read(name, number, setting), number, setting.quick):
                yield {"data": name, "seed": number} | row


def read(name: str, number: int, setting: Setting) -> Split:
    """A split of a set; made up where a quick run has no data folder."""
    if setting.data is None and setting.quick:
        source = generator(SETS.index(name))
        x = torch.randn(60, 4, generator=source, dtype=torch.float64)
        y = x[:, :1].sin() + 0.1 * torch.randn(60, 1, generator=source, dtype=torch.float64)
        return Split((x[:54], y[:54]), (x[54:], y[54:]))
    return split(setting.folder / "uci" / f"{name}.npz", number)


def compared(data: Split, seed: int, quick: bool) -> Iterator[Row]:
    """The two lines, the network with the noise of its residuals, and Bayesian ridge regression."""
    (x, y), (new, truth) = data.train, data.test
    model, training = timed(lambda: trained(data.train, seed, **({"units": 5, "iterations": 20} if quick else {})))
    with torch.no_grad():
        residual, mean = float((model(x) - y).square().mean().sqrt()), model(new)

    posterior, seconds = timed(lambda: lw.tune(lw.Laplace(lw.Gaussian()).fit(model, (x, y))))
    found = posterior.predict(new)
    noise = posterior.likelihood.noise_std
    row: Row = {"method": "lapwing", "structure": type(posterior).__name__, "seconds": seconds}
    row |= {"weights": posterior.network.size, "train_seconds": training, "train_rmse": residual}
    row |= {"prior_precision": posterior.prior.precision, "effective_dimension": float(posterior.effective_dimension())}
    yield row | scores(found.mean, found.std, noise, truth)
    yield {"method": "plain network"} | scores(mean, torch.full_like(mean, residual), residual, truth)
    yield {"method": "BayesianRidge"} | ridge(data)


def ridge(data: Split) -> Row:
    """Bayesian ridge regression on the standardised inputs, by scikit-learn."""
    from sklearn.linear_model import BayesianRidge

    (x, y), (new, truth) = data.train, data.test
    fitted = BayesianRidge().fit(x.numpy(), y[:, 0].numpy())
    mean, std = (torch.as_tensor(part)[:, None] for part in fitted.predict(new.numpy(), return_std=True))
    return scores(mean, std, float(fitted.alpha_) ** -0.5, truth)


def verdicts(found: Sequence[Row]) -> Iterator[Row]:
    """On how many sets, over the means of their splits, the two lines do what they should."""
    means = {(row["data"], row["method"]): row for row in found if row.get("summary")}
    names, (low, high) = list(dict.fromkeys(data for data, _ in means)), COVERAGE

    def below(name: str, other: str) -> bool:
        return means[name, "lapwing"]["nll"] < means[name, other]["nll"]

    claims: dict[str, Callable[[str], bool]] = {
        "NLL below BayesianRidge": lambda name: below(name, "BayesianRidge"),
        "NLL below the plain network": lambda name: below(name, "plain network"),
        f"95 % intervals cover {low:.0%} to {high:.0%}": lambda n: low <= means[n, "lapwing"]["coverage"] <= high,
        f"noise within a factor {NOISE} of held-out residuals": lambda n: (
            1 / NOISE <= means[n, "lapwing"]["noise_ratio"] <= NOISE
        ),
    }
    for claim, holds in claims.items():
        failed = [name for name in names if not holds(name)]
        yield {"verdict": claim, "holds_on": len(names) - len(failed), "sets": len(names), "not_on": failed}


STUDY = Study(rows, COLUMNS, ("weights",), verdict=verdicts, seeds=1, needs="the UCI sets")

if __name__ == "__main__":
    main({"uci": STUDY})
