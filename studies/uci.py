"""Ten UCI sets: the two lines of the README for a trained perceptron, beside what anybody would compare them with.

    posterior = lw.Laplace(lw.Gaussian()).fit(model, (x, y))
    posterior = lw.tune(posterior)

A perceptron of two hidden layers, 50 tanh units each, is trained on standardised data by L-BFGS with a little weight
decay, the same for every set. Beside it: the network with the noise of its residuals, and ``BayesianRidge`` on the
standardised inputs. Rows are scored on a held-out tenth, in units of the standardised target.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import lapwing as lw
from studies.report import Row
from studies.runs import command
from studies.seeds import generator

SETS = ("yacht", "energy", "housing", "concrete", "wine", "bike", "elevators", "pol", "protein", "keggdirected")
ROWS = 2000
COVERAGE, NOISE = (0.9, 0.99), 1.5
"""What intervals of 95 % should cover, and the factor within which the noise should be that of held-out residuals."""

SHOWN = ("data", "method", "structure", "nll", "rmse", "coverage", "noise_ratio", "seconds")


@dataclass(frozen=True)
class Setting:
    """How much is run.

    Args:
        data: Folder with ``uci/NAME.npz``.
        quick: Whether seconds must do: two sets, small networks. Its numbers say nothing.
        sets: Which sets.
        splits: Splits into training and test data, of the ten there are.
        units: Units of each of the two hidden layers.
        iterations: Most iterations of L-BFGS.
        decay: Weight decay, ``decay |θ|²`` beside the mean squared error.
    """

    data: Path
    quick: bool = False
    sets: tuple[str, ...] = SETS
    splits: int = 1
    units: int = 50
    iterations: int = 1000
    decay: float = 3e-3


@dataclass(frozen=True, eq=False)
class Split:
    """Standardised inputs ``[n, d]`` and targets ``[n, 1]``, by the means and deviations of the training part."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def split(path: Path, number: int) -> Split:
    """A split of a set; of a large one that of 2000 rows.

    Args:
        path: Has ``x``, ``y`` and ``test_mask``.
        number: Column of ``test_mask``.
    """
    with np.load(path) as held:
        x, y, test = (torch.as_tensor(held[name]) for name in ("x", "y", "test_mask"))
    kept = torch.randperm(len(x), generator=generator())[:ROWS]
    x, y, test = x[kept].double(), y[kept].double().view(-1, 1), test[kept, number]
    x, y = (standardised(part, part[~test]) for part in (x, y))
    return Split((x[~test], y[~test]), (x[test], y[test]))


def standardised(values: Tensor, train: Tensor) -> Tensor:
    """The values less the means of the training part, over its deviations; constant columns become 0."""
    spread = train.std(0)
    return (values - train.mean(0)) / torch.where(spread > 0, spread, 1.0)


def trained(data: tuple[Tensor, Tensor], seed: int, setting: Setting) -> nn.Sequential:
    """A perceptron at a minimum of ``mean squared error + decay |θ|²``."""
    x, y = data
    width = setting.units
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(x.shape[1], width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        model.append(nn.Linear(width, 1)).double()
    options = {"max_iter": setting.iterations, "history_size": 20, "line_search_fn": "strong_wolfe"}
    optimiser = torch.optim.LBFGS(model.parameters(), tolerance_change=1e-14, **options)

    def loss() -> Tensor:
        optimiser.zero_grad()
        penalty = sum(value.square().sum() for value in model.parameters())
        value = (model(x) - y).square().mean() + setting.decay * penalty
        value.backward()
        return value

    optimiser.step(loss)
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
    if setting.quick:
        setting = replace(setting, sets=SETS[:2], units=5, iterations=20)
    for name in setting.sets:
        for number in range(setting.splits):
            for row in compared(split(setting.data / "uci" / f"{name}.npz", number), number, setting):
                yield {"study": "uci", "data": name, "split": number} | row


def compared(data: Split, seed: int, setting: Setting) -> Iterator[Row]:
    """The two lines, the network with the noise of its residuals, and Bayesian ridge regression."""
    (x, y), (new, truth) = data.train, data.test
    start = time.perf_counter()
    model = trained(data.train, seed, setting)
    training = time.perf_counter() - start
    with torch.no_grad():
        residual, mean = float((model(x) - y).square().mean().sqrt()), model(new)

    start = time.perf_counter()
    posterior = lw.tune(lw.Laplace(lw.Gaussian()).fit(model, (x, y)))
    seconds = time.perf_counter() - start
    found = posterior.predict(new)
    noise = posterior.likelihood.noise_std
    row: Row = {"method": "lapwing", "structure": type(posterior).__name__, "seconds": seconds}
    row |= {"train": len(x), "weights": posterior.network.size, "train_seconds": training, "train_rmse": residual}
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


def verdict(found: list[Row]) -> Iterator[Row]:
    """On how many sets, over the means of their splits, the two lines do what they should."""
    means = {
        (row["data"], row["method"]): [r for r in found if r["data"] == row["data"] and r["method"] == row["method"]]
        for row in found
    }

    def mean(name: str, method: str, column: str) -> float:
        return statistics.fmean(row[column] for row in means[name, method])

    names = list(dict.fromkeys(row["data"] for row in found))
    low, high = COVERAGE
    held = {
        "NLL below BayesianRidge": [mean(n, "lapwing", "nll") < mean(n, "BayesianRidge", "nll") for n in names],
        "NLL below the plain network": [mean(n, "lapwing", "nll") < mean(n, "plain network", "nll") for n in names],
        f"95 % intervals cover {low:.0%} to {high:.0%}": [low <= mean(n, "lapwing", "coverage") <= high for n in names],
        f"noise within a factor {NOISE} of held-out residuals": [
            1 / NOISE <= mean(n, "lapwing", "noise_ratio") <= NOISE for n in names
        ],
    }
    for claim, each in held.items():
        failed = [name for name, holds in zip(names, each, strict=True) if not holds]
        yield {"study": "uci", "verdict": claim, "holds_on": sum(each), "sets": len(each), "not_on": failed}


def text(found: list[Row]) -> str:
    """The rows as a table, then the counts."""
    lines = [f"| {' | '.join(SHOWN)} |", f"|{'---|' * len(SHOWN)}"]
    for row in found:
        if "verdict" not in row:
            values = [row.get(column, "") for column in SHOWN]
            lines.append(f"| {' | '.join(f'{v:.3f}' if isinstance(v, float) else str(v) for v in values)} |")
    lines.append("")
    for row in found:
        if "verdict" in row:
            but = f" (not {', '.join(row['not_on'])})" if row["not_on"] else ""
            lines.append(f"- {row['verdict']}: {row['holds_on']} of {row['sets']}{but}")
    return "\n".join(lines) + "\n"


main = command("studies.uci", __doc__, Setting, hidden=("study", "train_seconds"))

if __name__ == "__main__":
    main()
