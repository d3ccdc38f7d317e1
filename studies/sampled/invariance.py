"""Weights that feed a normalisation have no scale: which priors see it all the same.

The normalised groups of a network, found by trying, are multiplied by c: the network stays the same function. With a
precision of its own for each of them, at the optimum, and with a g-prior of any precision, so does every predictive
variance (Antorán 2024, propositions 5 and 8). With one precision for all weights it does not. Everything in float64.

At the trained weights the optimum is climbed to from the same start. EM may take hundreds of steps to switch off a
layer: its first ones are taken, from precisions that moved with the weights. Lemma 7 holds for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import Pair, digits
from benchmarks.networks import seeded
from benchmarks.report import Row, attempt
from benchmarks.training import train as descended
from lapwing.jacobian.network.scale_invariance import normalised
from lapwing.likelihoods import Likelihood
from lapwing.posteriors import Posterior
from lapwing.priors import Prior
from studies.sampled.matern import Toy, network, train
from studies.sampled.networks import cnn
from studies.sampled.setting import SGD

FACTORS = (0.2, 5.0)
MODE = "at the mode"
PRIORS = ("isotropic", "layerwise", "g-prior")
LARGE = 1e8
COLUMNS = ("change", "mean_change", "precision_by_scale", "nll_change", "effective_dimension")


@dataclass(frozen=True)
class Case:
    """A trained network with normalised weights.

    Args:
        model: The network, in float64.
        likelihood: p(y | f).
        train: What it was trained on.
        test: Where variances are compared.
        parts: Names of the parameters in each normalised group.
    """

    model: nn.Module
    likelihood: Likelihood
    train: Pair
    test: Pair
    parts: tuple[tuple[str, ...], ...]

    def scaled(self, c: float) -> nn.Module:
        """The same function with its normalised weights, and what it keeps of batches, multiplied by c."""
        model = deepcopy(self.model)
        names = {name for part in self.parts for name in part}
        with torch.no_grad():
            for name, value in model.named_parameters():
                value *= c if name in names else 1.0
            for name, value in model.named_buffers():
                value *= {"running_mean": c, "running_var": c**2}.get(name.rpartition(".")[2], 1)
        return model

    def posterior(self, model: nn.Module, prior: Prior) -> Posterior:
        """The exact posterior of one of the networks."""
        recipe = lw.Laplace(self.likelihood, prior=prior, structure=lw.Full())
        return recipe.fit(model, self.train)


def perceptron(seed: int, quick: bool) -> Case:
    """The toy with layer norms; few points and units, so that hundreds of steps are cheap."""
    toy = Toy.draw(seed, points=10 if quick else 40)
    model = train(network(seed, width=5 if quick else 20), toy.train, 100 if quick else 1000)
    parts = normalised(model, toy.train[0]).parts
    return Case(model, lw.Gaussian(toy.precision), toy.train, toy.gap, parts or ())


def convolutions(seed: int, quick: bool) -> Case:
    """A small CNN with batch norms on 8 × 8 digits; what these add to variances is made small, as it is no scale."""
    wide = digits(seed).head(40 if quick else 300, 50).to(torch.float64)
    model = seeded(lambda: cnn(*((3, 4, 4) if quick else (6, 8, 8))), seed).double()
    descended(model, *wide.train, epochs=5 if quick else 30, seed=seed, **SGD)
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eps = 1e-12
    pair = wide.head(15 if quick else 60).train
    return Case(model, lw.Categorical(), pair, wide.test, normalised(model, wide.x_train).parts or ())


CASES: dict[str, Callable[[int, bool], Case]] = {"perceptron": perceptron, "CNN": convolutions}


def rows(setting: Setting) -> Iterator[Row]:
    """A row for each network, prior, way to choose its precisions, and factor."""
    for name in setting.among(CASES):
        for seed in setting.repeats:
            case = CASES[name](seed, setting.quick)
            for prior in setting.among(PRIORS):
                for way in ways(setting.quick):
                    for row in compared(case, prior, way, setting.quick):
                        head: Row = {"network": name, "prior": prior, "chosen": way}
                        yield head | {"seed": seed} | row


def ways(quick: bool) -> dict[str, Callable[[Posterior], Posterior]]:
    """How precisions are chosen: not at all, by the evidence at the trained weights, or at the tangent model's mode."""
    return {
        "fixed": lambda posterior: posterior,
        "at the weights": at_the_weights,
        MODE: partial(lw.tune, method=lw.EM(noise=False, steps=3 if quick else 10, tolerance=1e-9)),
    }


def at_the_weights(posterior: Posterior) -> Posterior:
    """The largest evidence at the trained weights: near it by its gradient, then all but on it by the fixed point."""
    return lw.tune(lw.tune(posterior, lw.EvidenceGradient(noise=False)), lw.MacKay(noise=False, steps=60))


def compared(case: Case, prior: str, way: str, quick: bool) -> Iterator[Row]:
    """How far variances and precisions move with the scale of the weights."""
    choose = ways(quick)[way]

    def found(c: float) -> tuple[Posterior, Tensor]:
        posterior = choose(case.posterior(case.scaled(c), made(prior, case, c if way == MODE else 1.0)))
        return posterior, variance(posterior, case.test[0])

    reference, failure = attempt(lambda: found(1.0))
    for c in FACTORS:
        now, failed = attempt(lambda c=c: found(c)) if reference is not None else (None, failure)
        row: Row = {"scale": f"{c:g}", "failure": failed}
        if now is not None and reference is not None:
            moved = (now[1] / reference[1] - 1).abs()
            row |= {"change": float(moved.max()), "mean_change": float(moved.mean())}
            row["effective_dimension"] = float(now[0].effective_dimension())
            row["nll_change"] = score(now[0], case.test) - score(reference[0], case.test)
            if prior == "layerwise":
                row["precision_by_scale"] = by_scale(now[0], reference[0], c, len(case.parts))
        yield row


def by_scale(now: Posterior, reference: Posterior, c: float, groups: int) -> float | None:
    """``c² α / α₁`` of the normalised groups, geometric mean: 1 where precisions follow the scale (lemma 7).

    Groups that the evidence switched off are left out: their precision is as large as is allowed. ``None`` where it
    switched off all of them.
    """
    before, after = reference.prior_precisions[:groups], now.prior_precisions[:groups]
    kept = before < LARGE
    return float((c**2 * after / before)[kept].log().mean().exp()) if bool(kept.any()) else None


def made(name: str, case: Case, c: float) -> Prior:
    """A prior by its name, before any tuning; one by layers starts where weights that were scaled by c want it."""
    if name == "isotropic":
        return lw.Isotropic(1.0)
    if name == "layerwise":
        return lw.Layerwise((*[c**-2] * len(case.parts), 1.0), case.parts)
    return lw.GPrior(1.0)


def variance(posterior: Posterior, x: Tensor) -> Tensor:
    """Predictive variance of every output, noise left out."""
    (moments,) = posterior.outputs_each(x, [posterior])
    return moments.variance


def score(posterior: Posterior, test: Pair) -> float:
    """Test NLL, nats."""
    return lw.evaluate(posterior, test)["nll"]
