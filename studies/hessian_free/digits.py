"""Digits with three classes held out, as in lapwing's demo, by a convolutional network of 30 thousand weights.

Hessian-free Laplace, probed, beside the posterior of the GGN at the same prior, which is exact in function space: NLL
of the seven known digits, and how well confidence tells the three unseen ones apart. The exact Hessian needs a minimum
of the loss with the prior, so the network has tanh units and average pooling, which have no kinks, is trained to the
end in float64, and refitted in float32. Each seed holds out other digits and draws other training images, weights and
probes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.networks import pooled, seeded, weight_count
from benchmarks.report import Row, grouped, tried
from benchmarks.training import minimise, train
from lapwing.demo.digits import CLASSES, UNSEEN, Digits, Pair
from lapwing.demo.digits import digits as drawn
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.methods.hessian_free import HessianFree, HessianFreePosterior, Probed

SEEDS = 3
HIDDEN = 396
ALPHA = 5.0
"""Prior precision of all rows."""

ROUNDS, SHORT = 4, 1e-4
"""Most rounds of L-BFGS, and the length of the gradient at which they end."""

TRAIN, TEST = 200, 150
PROBES = ((24, 8), (128, 16))
"""Probes for the approximation and for its rest; the first are the default."""
SCORES = ("nll", "ood_auroc", "accuracy", "ece", "brier")

REFERENCE, NEAR = "GGN", 0.02


def network(hidden: int = HIDDEN, seed: int = 0) -> nn.Sequential:
    """Two convolutions and two linear layers with tanh units.

    Example:
        >>> weight_count(network())
        29767
    """
    sizes = (8, 16, 64, hidden, CLASSES - UNSEEN)
    parts = {"kernel": 3, "padding": 1, "activation": nn.Tanh, "pool": nn.AvgPool2d}
    return seeded(lambda: pooled(*sizes, **parts), seed).double()


def minimum(model: nn.Module, pair: Pair, iterations: int) -> float:
    """L-BFGS on the loss and the prior, after Adam, in rounds until the gradient is short; in place.

    Args:
        model: The network.
        pair: Images and labels.
        iterations: Steps of L-BFGS in a round.

    Returns:
        Length of the gradient that is left.
    """
    x, y = pair
    train(model, x, y, epochs=200, decay=ALPHA / len(y))

    def loss() -> Tensor:
        norm = torch.stack([value.square().sum() for value in model.parameters()]).sum()
        return nn.functional.cross_entropy(model(x), y, reduction="sum") + 0.5 * ALPHA * norm

    options = {"max_eval": 2 * iterations, "history_size": 30, "tolerance_grad": 1e-9, "tolerance_change": 0.0}
    left = float("inf")
    for _ in range(ROUNDS):
        left = minimise(model, loss, max_iter=iterations, **options)
        if left < SHORT:
            break
    return left


def rows(setting: Setting) -> Iterator[Row]:
    """Every method on every seed."""
    sizes = {"train": 40, "test": 20} if setting.quick else {"train": TRAIN, "test": TEST}
    for seed in map(int, setting.among(tuple(map(str, setting.repeats[:SEEDS])))):
        data = drawn(seed, validation=0, **sizes)
        model = network(12 if setting.quick else HIDDEN, seed)
        left = minimum(model, (data.train[0].double(), data.train[1]), 100 if setting.quick else 1500)
        model = model.float()
        for name, made in methods(setting, seed).items():
            head: Row = {"part": f"prior precision {ALPHA:g}", "method": name, "seed": seed}
            head |= {"weights": weight_count(model), "gradient": left}
            yield head | {"held_out": list(data.held_out)} | scored(made, model, data)


def methods(setting: Setting, seed: int) -> dict[str, Callable[[nn.Module, Pair, Tensor], Any]]:
    """What makes a predictor of some points from a network and its training data."""
    prior, likelihood = lw.Isotropic(ALPHA), lw.Categorical()
    ggn = lw.Laplace(likelihood, prior=prior, structure=lw.Full(view="functions"))
    found: dict[str, Callable[[nn.Module, Pair, Tensor], Any]] = {
        "plain": lambda model, pair, points: PlainNetwork(model, likelihood),
        "GGN": lambda model, pair, points: ggn.fit(model, pair),
    }
    for probes, residual in ((4, 2),) if setting.quick else PROBES:
        recipe = HessianFree(likelihood, prior=prior, fits=Probed(probes, residual), seed=seed)
        found[f"probed, {probes} + {residual}"] = lambda model, pair, points, own=recipe: own.fit(model, pair, points)
    return found


def scored(made: Callable[[nn.Module, Pair, Tensor], Any], model: nn.Module, data: Digits) -> Row:
    """Scores of a method, and what it cost."""
    points = torch.cat([data.test[0], data.unseen[0]])
    predictor, row = tried(lambda: made(model, data.train, points), "cpu_seconds", time.process_time)
    if predictor is None:
        return row
    found = lw.evaluate(predictor, data.test, ood=data.unseen)
    row |= {name: found[name] for name in SCORES}
    if isinstance(predictor, HessianFreePosterior):
        row |= {"fits": predictor.linearity.fits, "products": predictor.linearity.products}
        row |= {"linearity": predictor.linearity.change, "residual": predictor.linearity.residual}
    return row


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """Whether NLL and AUROC are near the GGN's on the mean over the seeds, and the largest difference of any seed."""
    seeds = grouped((row for row in found if "seed" in row), "seed")
    for name in dict.fromkeys(row["method"] for row in found if row["method"].startswith("probed")):
        row: Row = {"verdict": name}
        for score in ("nll", "ood_auroc"):
            values = [{row["method"]: row[score] for row in own if score in row} for own in seeds.values()]
            differences = [each[name] - each[REFERENCE] for each in values if name in each]
            if differences:
                row |= {score: sum(differences) / len(differences), f"{score}_largest": max(map(abs, differences))}
        near = [abs(row[score]) <= NEAR for score in ("nll", "ood_auroc") if score in row]
        yield row | {"within": len(near) == 2 and all(near)}
