"""A digit CNN, sampled and predicted: linearised and not, scored on test images (Brack 2023, section 6.2, figure 6.4).

The source trains by MAP at α = 0.1, draws 200 samples and looks at their distances only. Here the same draws also
predict, through the network as it is and through its linearisation, beside the network alone and the structures one
would use instead, at the source's precision and at one that suits prediction. Draws are by perturb-and-solve.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import Pair, generator
from benchmarks.report import Row, attempt, figure, tried
from benchmarks.tasks import matrix_free, probabilities, scored
from lapwing.evaluation.diagnosis import diagnose_samples
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.linear.solvers import CG
from lapwing.posteriors import MatrixFreePosterior
from studies.full.setting import ALPHA, Digits

IMAGES = 300
TESTED = 500
DRAWS = 200
ALPHAS = (ALPHA, 10.0)
STRUCTURES = {"KFAC": lw.KFAC(), "diagonal": lw.Diagonal()}
"""What one would use instead."""

DRAWN = {"full covariance, linearised": True, "full covariance, networks": False}
"""Predictions averaged over the draws, and whether the network is taken as linear in its weights."""


def rows(setting: Setting) -> Iterator[Row]:
    """For each prior precision a row about the draws, and one for each way to predict."""
    draws = 30 if setting.quick else DRAWS
    digits = Digits(setting)
    test = digits.split.head(None, 60 if setting.quick else TESTED).test
    model = digits.network()
    data = digits.head(IMAGES, quick=40)
    facts = digits.facts(model, len(data[1])) | {"draws": draws, "tested": len(test[1])}
    plain = {"method": "network alone", "alpha": None}
    yield setting.resumed(facts | plain, lambda: scores(probabilities(PlainNetwork(model), test[0]), test[1]))
    for alpha in ALPHAS[:1] if setting.quick else ALPHAS:
        yield from at_precision(setting, facts | {"alpha": alpha}, model, data, test)


def at_precision(setting: Setting, facts: Row, model: nn.Module, data: Pair, test: Pair) -> Iterator[Row]:
    """The draws under one prior precision, and what they and the other structures predict."""
    solver = CG(rtol=1e-4, preconditioner=lw.LowRank(16 if setting.quick else 200))
    posterior = matrix_free(model, data, facts["alpha"], solver)
    solution, cost = tried(
        lambda: posterior.draw(facts["draws"], generator=generator()), "seconds_drawing", time.process_time
    )
    if solution is None:
        yield facts | {"method": "draws"} | cost
    else:
        delta = solution.value.mT
        yield setting.resumed(facts | {"method": "draws"}, lambda: cost | quality(posterior, delta))
        for name, linearised in DRAWN.items():
            work = partial(by_draws, posterior, delta, test, linearised=linearised)
            yield setting.resumed(facts | {"method": name}, partial(attempted, work))
    for name, structure in STRUCTURES.items():
        recipe = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(facts["alpha"]), structure=structure)
        work = partial(by_recipe, recipe, model, data, test)
        yield setting.resumed(facts | {"method": f"{name}, linearised"}, partial(attempted, work))


def attempted(work: Callable[[], Row]) -> Row:
    """The row of a piece of work with its processor seconds, or why there is none."""
    found, cost = tried(work, clock=time.process_time)
    return (found or {}) | cost


def quality(posterior: MatrixFreePosterior, delta: Tensor) -> Row:
    """Whether the draws are right, and the quantiles of their distances beside those of χ²."""
    zeros = torch.zeros_like(posterior.network.weights)
    found, failure = attempt(
        lambda: diagnose_samples(delta, zeros, posterior.precision_operator, generator=generator(1))
    )
    if found is None:
        return {"failure": failure}
    expected, seen = found.quantiles()
    row: Row = {"ks_p": found["radius"].p_value, "passed": found.passed, "said": str(found)}
    row["qq_error"] = float((seen / expected - 1).abs().max())
    return row | {"plot": {"expected": expected.tolist(), "seen": seen.tolist()}, "failure": ""}


def by_draws(posterior: MatrixFreePosterior, delta: Tensor, test: Pair, *, linearised: bool) -> Row:
    """Scores of probabilities averaged over the draws.

    Args:
        posterior: Around whose network.
        delta: Deviations from its weights ``[s, d]``.
        test: Images and labels.
        linearised: Whether the network is taken as linear in its weights.
    """
    network = posterior.network
    x, y = test
    with torch.no_grad():
        if linearised:
            mean, moved = posterior.pushed(x, delta.mT)
            logits = mean + moved.movedim(-1, 0)
        else:
            logits = torch.stack([network(x, network.with_weights(network.weights + each)) for each in delta])
    return scores(logits.softmax(-1).mean(0), y)


def by_recipe(recipe: lw.Laplace, model: nn.Module, data: Pair, test: Pair) -> Row:
    """Scores of another structure."""
    return scores(probabilities(recipe.fit(model, data), test[0]), test[1])


def scores(probs: Tensor, labels: Tensor) -> Row:
    """What the source does not report."""
    return scored(probs, labels, "accuracy", "nll", "ece", "brier")


def draw(found: Sequence[Row]) -> Any:
    """QQ plots of the distances."""
    made = figure(5.0, 4.0, 1)
    (panel,) = made.axes
    for row in found:
        if "plot" in row:
            expected = torch.tensor(row["plot"]["expected"])
            ratio = torch.tensor(row["plot"]["seen"]) / expected
            panel.plot(expected.tolist(), ratio.tolist(), ".", markersize=3, label=f"α = {row['alpha']:g}")
    panel.axhline(1, color="#333333", linestyle="--", linewidth=1)
    panel.set(xlabel="quantiles of χ²(d)", ylabel="quantiles of d² over these")
    panel.legend(frameon=False, fontsize=8)
    return made
