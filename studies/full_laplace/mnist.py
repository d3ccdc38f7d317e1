"""A digit CNN, sampled and predicted: linearised and not, scored on test images and on images from elsewhere.

The source trains by MAP at α = 0.1, draws 200 samples and looks at their distances only (Brack 2023, section 6.2). Here
the same draws also predict, through the network as it is and through its linearisation, beside the network alone and
the structures one would use instead. The variances of the linearised draws are held against those that solves with the
Jacobian's rows give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import Pair, generator
from benchmarks.report import Row, attempt, figure, grouped, tried
from benchmarks.tasks import Batched, Linearised, matrix_free
from lapwing.evaluation.baselines import Map
from lapwing.evaluation.diagnosis import diagnose_samples
from lapwing.evaluation.scores import Predictor, metrics
from lapwing.likelihoods import Likelihood
from lapwing.linear.solvers import CG
from lapwing.posteriors import MatrixFreePosterior
from lapwing.predictive import Draws, Predictive
from studies.full_laplace.setting import Digits

IMAGES = 5000
SOLVED = 20
"""Test images whose variances are computed by solves."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """Predictions averaged over given draws of the weights.

    Args:
        posterior: Around whose network.
        draws: Deviations from its weights ``[s, d]``.
        linearised: Whether the network is taken as linear in its weights.
    """

    posterior: MatrixFreePosterior
    draws: Tensor
    linearised: bool

    @property
    def likelihood(self) -> Likelihood:
        """p(y | f)."""
        return self.posterior.likelihood

    def predict(self, x: Tensor) -> Predictive:
        """Probabilities averaged over the draws."""
        with torch.no_grad():
            return self.likelihood.predictive(Draws(self.outputs(x)))

    def outputs(self, x: Tensor) -> Tensor:
        """Logits of every draw, ``[s, n, c]``."""
        if self.linearised:
            return Linearised(self.posterior, self.draws).outputs(x)
        network = self.posterior.network
        return torch.stack([network(x, network.with_weights(network.weights + delta)) for delta in self.draws])


def rows(setting: Setting) -> Iterator[Row]:
    """A row for each prior precision and way to predict, and one for each prior precision about the draws."""
    draws, tested = (30, 60) if setting.quick else (200, 2000)
    digits = Digits(setting)
    test = digits.split.head(None, tested).test
    for alpha in (0.1,) if setting.quick else (0.1, 1.0, 10.0):
        model, data = digits.network(alpha=alpha), digits.head(IMAGES, quick=40)
        head = digits.facts(model, len(data[1])) | {"alpha": alpha}
        solver = CG(rtol=1e-4, preconditioner=lw.LowRank(16 if setting.quick else 300))
        posterior = matrix_free(model, data, alpha, solver)
        solution, cost = tried(lambda at=posterior: at.draw(draws, generator=generator()))
        ways: dict[str, Any] = {"network alone": lambda net=model: Map(net)}
        if solution is None:
            yield head | {"method": "draws"} | cost
        else:
            delta = solution.value.mT
            yield head | {"method": "draws"} | cost | quality(posterior, delta, test[0], setting)
            ways |= {
                "full covariance, linearised": lambda at=posterior, by=delta: Drawn(at, by, True),
                "full covariance, networks": lambda at=posterior, by=delta: Drawn(at, by, False),
            }
        for name, structure in {"KFAC": lw.KFAC(), "diagonal": lw.Diagonal()}.items():
            recipe = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(alpha), structure=structure)
            ways[f"{name}, linearised"] = lambda by=recipe, net=model, at=data: by.fit(net, at)
        for name, make in ways.items():
            scores, cost = tried(lambda make=make: scored(make(), test))
            yield head | {"method": name, "test_images": len(test[1])} | (scores or {}) | cost


def quality(posterior: MatrixFreePosterior, delta: Tensor, x: Tensor, setting: Setting) -> Row:
    """What the draws cost and whether they are right."""
    zeros = torch.zeros_like(posterior.network.weights)
    found, failure = attempt(
        lambda: diagnose_samples(delta, zeros, posterior.precision_operator, generator=generator(1))
    )
    row: Row = {"draws": len(delta), "failure": failure}
    if found is not None:
        row |= {"ks_p": found["radius"].p_value, "passed": found.passed, "said": str(found)}
        expected, seen = found.quantiles()
        row["plot"] = {"expected": expected.tolist(), "seen": seen.tolist()}
    ratio, failure = attempt(lambda: variance_ratio(posterior, delta, x[: 3 if setting.quick else SOLVED]))
    return row | {"variance_by_draws_over_variance_by_solves": ratio, "failure": row["failure"] or failure}


def variance_ratio(posterior: MatrixFreePosterior, delta: Tensor, x: Tensor) -> float:
    """Variances of the logits over the draws, over those that solves give; summed over logits and images."""
    by_draws = Linearised(posterior, delta).outputs(x).double().var(0).sum()
    by_solves = posterior.solved_outputs(x).moments.covariance.double().diagonal(dim1=-2, dim2=-1).sum()
    return float(by_draws / by_solves)


def scored(predictor: Predictor, test: Pair) -> Row:
    """Scores on test images, and how well confidence tells them from images that are no digits.

    The others are made from the test images: their negatives, their transposes (some digits are their own), and uniform
    noise.
    """
    predictor = Batched(predictor)
    x, y = test
    scores = lw.evaluate(predictor, (x, y))
    row: Row = {name: scores[name] for name in ("accuracy", "nll", "ece", "brier")}
    inside = uncertainty(predictor, x)
    noise = torch.rand(x.shape, generator=generator()).to(x)
    for name, foreign in {"inverted": 1 - x, "transposed": x.mT.contiguous(), "noise": noise}.items():
        row[f"ood_auroc_{name}"] = metrics.auroc(inside, uncertainty(predictor, foreign))
    return row


def uncertainty(predictor: Any, x: Tensor) -> Tensor:
    """One minus the largest probability."""
    return 1 - predictor.predict(x).probs.amax(-1)


def draw(found: Sequence[Row]) -> Any:
    """QQ plots of the distances, and NLL by method."""
    made = figure(11.0, 4.0, 2)
    left, right = made.axes
    for row in found:
        if "plot" in row:
            ratio = torch.tensor(row["plot"]["seen"]) / torch.tensor(row["plot"]["expected"])
            left.plot(row["plot"]["expected"], ratio.tolist(), ".", markersize=3, label=f"α = {row['alpha']:g}")
    left.axhline(1, color="#333333", linestyle="--", linewidth=1)
    left.set(xlabel="quantiles of χ²(d)", ylabel="quantiles of d² over these")
    scores = [row for row in found if row.get("nll") is not None]
    for name, own in grouped(scores, "method").items():
        right.plot([row["alpha"] for row in own], [row["nll"] for row in own], marker="o", label=name)
    right.set(xscale="log", yscale="log", xlabel="prior precision α", ylabel="test NLL, nats")
    for panel in made.axes:
        panel.legend(frameon=False, fontsize=8)
    return made
