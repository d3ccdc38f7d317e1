"""What the studies are run on: UCI sets, a process of standard form, and how predictions are scored."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import generator
from benchmarks.report import Row
from lapwing.gp import GP, GPPosterior, Matern
from lapwing.linear.solvers import Cholesky, Solver
from studies import uci

NOISE = 0.1
"""Noise variance before tuning, for targets of variance 1."""

SOLVERS: dict[str, Solver | str] = {
    "auto": "auto",
    "Cholesky": Cholesky(max_bytes=2**34),
    "CG": lw.solvers.CG(rtol=1e-2, preconditioner=lw.preconditioners.PivotedCholesky(100)),
}
"""By the name of the option ``--solver``, beside SDD."""


def split(setting: Setting, name: str, number: int, most: int | None = None) -> uci.Split:
    """A split of a UCI set, z-scored; ``--train`` leaves so many of its rows, at random, instead of the study's own."""
    if setting.data is None and setting.quick:
        return uci.read(name, number, setting)
    whole = uci.split(setting.folder / "uci" / f"{name}.npz", number, None)
    x, y = whole.train
    kept = torch.randperm(len(x), generator=generator(number))[: setting.images or (100 if setting.quick else most)]
    return uci.Split((x[kept], y[kept]), whole.test)


def start(dimensions: int, **options: Any) -> GP:
    """Matérn 3/2, a length-scale a dimension, with which a function varies about once over z-scored inputs."""
    return GP(1.0 * Matern((dimensions**0.5,) * dimensions), lw.Gaussian(1 / NOISE), mean="zero", **options)


def scores(process: GPPosterior, mean: Tensor, variance: Tensor, truth: Tensor) -> Row:
    """RMSE, and NLL in nats with the noise added to the variance of the function."""
    noise = 1 / process.likelihood.noise
    found = uci.scores(mean, (variance + noise).sqrt(), noise**0.5, truth)
    return {key: found[key] for key in ("rmse", "nll", "coverage")}


def drawn_scores(process: GPPosterior, new: Tensor, truth: Tensor) -> Row:
    """Scores with the variance of the functions drawn, as the source has it."""
    with torch.no_grad():
        mean = process.mean(new)
        return scores(process, mean, (process.functions(new) - mean).square().mean(0), truth)


def chosen(process: GPPosterior) -> Row:
    """Hyper-parameters and noise of a process."""
    named = dict(zip(process.kernel.labels(), process.kernel.hyper.exp().tolist(), strict=True))
    scales = [value for name, value in named.items() if "lengthscale" in name]
    return {
        "noise_variance": 1 / process.likelihood.noise,
        "variance": named.get("variance", 1.0),
        "lengthscales": [float(f"{value:.4g}") for value in scales],
    }


def within(found: float, published: float, tolerance: float) -> bool:
    """Whether a score is no worse than a published one, by more than the tolerance."""
    return math.isfinite(found) and found <= published + tolerance
