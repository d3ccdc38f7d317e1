"""How far each posterior is from the exact one, at the same prior: in its logits and in its probabilities.

The exact posterior is that of the full covariance in function space, its prior one that EM chose from draws. On MNIST
2000 images are behind the curvature, on the 8 × 8 digits all 1297: 20,000 and 12,970 rows, which are factorised in
float64. Draws are fresh ones, not those behind the prior.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.networks import weight_count
from benchmarks.report import Row, attempt, timed
from benchmarks.tasks import Task, moments, scored
from lapwing import metrics
from lapwing.comparison.bench import measured
from lapwing.predictive import Classification, Moments
from studies.sampled.setting import Size, names, task_of

IMAGES = {"digits": 1297, "mnist": 2000}
TESTED = 500
SAMPLES, FEW, RANK = 64, 16, 100
SIZE: Size = "medium"
SCORES = ("nll", "ece")
COLUMNS = (
    "logit_kl", "wasserstein", "probability_kl", "variance_ratio", "nll", "ece", "fit_seconds", "predict_seconds",
)  # fmt: skip


def solver(quick: bool) -> lw.CG:
    """What draws are solved with."""
    return lw.CG(preconditioner=lw.LowRank(5 if quick else RANK))


def structures(quick: bool, seed: int) -> dict[str, Any]:
    """What is compared."""
    samples = FEW if quick else SAMPLES
    rank = 5 if quick else 2 * RANK
    return {
        f"sampled, {samples}": lw.Sampled(samples, solver(quick), seed=seed + 1000),
        "KFAC": lw.KFAC(),
        "diagonal": lw.Diagonal(),
        f"low rank, {rank}": lw.LowRank(rank),
    }


def rows(setting: Setting) -> Iterator[Row]:
    """A row for each data set, seed and structure; the exact posterior first."""
    for data in names(setting):
        size: Size = "small" if setting.quick else SIZE
        for seed in setting.repeats:
            task = task_of(setting, data, "CNN", size, seed, IMAGES[data], 10 if setting.quick else TESTED)
            head: Row = {"part": data, "data": data, "network": "CNN", "weights": weight_count(task.model)}
            head |= {"images": len(task.train[1]), "test_images": len(task.test[1])}
            for row in of_network(task, setting.quick, seed):
                yield head | {"seed": seed} | row


def of_network(task: Task, quick: bool, seed: int) -> Iterator[Row]:
    """The rows of one trained network."""
    prior, told = chosen(task, quick, seed)
    exact, failure = attempt(lambda: outputs(task, prior, lw.Full(view="functions", max_bytes=2**34)))
    yield (
        {"structure": "exact", "failure": failure}
        | told
        | ({} if exact is None else exact[1] | scored(probabilities(exact[0]), task.test[1], *SCORES))
    )
    for name, structure in structures(quick, seed).items():
        found, failed = attempt(partial(outputs, task, prior, structure))
        row: Row = {"structure": name, "failure": failed}
        if found is not None:
            row |= found[1] | scored(probabilities(found[0]), task.test[1], *SCORES)
        if found is not None and exact is not None:
            row |= distances(found[0], exact[0])
        yield row


def chosen(task: Task, quick: bool, seed: int) -> tuple[lw.Isotropic, Row]:
    """The prior that EM chooses from draws."""
    posterior = recipe(lw.Isotropic(1.0), lw.MatrixFree(solver(quick))).fit(task.model, task.train)
    tuned, seconds = timed(lambda: lw.tune(posterior, lw.EM(samples=FEW, steps=3 if quick else 20, seed=seed)))
    precision = float(tuned.prior_precisions[0])
    trace = [step.prior_precision[0] for step in tuned.trace]
    row: Row = {"precision": precision, "effective_dimension": tuned.trace[-1].effective_dimension, "trace": trace}
    return lw.Isotropic(precision), row | {"em_seconds": seconds}


def recipe(prior: lw.Isotropic, structure: Any) -> lw.Laplace:
    """The recipe of every posterior."""
    return lw.Laplace(lw.Categorical(), prior=prior, structure=structure)


def outputs(task: Task, prior: lw.Isotropic, structure: Any) -> tuple[Moments, Row]:
    """Gaussian logits of the test images, and what they cost."""
    fit = measured(lambda: recipe(prior, structure).fit(task.model, task.train))
    (whole,), seconds = timed(lambda: moments(fit.value, task.test[0], [fit.value]))
    return whole, {"fit_seconds": fit.seconds, "predict_seconds": seconds, "fit_mib": fit.peak_mib}


def distances(found: Moments, exact: Moments) -> Row:
    """Means over the test images; the divergences are symmetric, W₂ is in units of a logit.

    That of the probabilities is of what the probit link makes of the variances, as in the source; ``logit_kl`` and
    ``wasserstein`` are of all logits of an image together, their ``marginal`` twins of each alone, added up.
    """
    apart = metrics.symmetric_kl(probabilities(found), probabilities(exact))
    row: Row = {"probability_kl": float(apart.mean())}
    for name, pair in {"": (found, exact), "_marginal": (alone(found), alone(exact))}.items():
        row[f"wasserstein{name}"] = float(metrics.gaussian_wasserstein(*pair).mean())
        row[f"logit_kl{name}"] = float(metrics.gaussian_symmetric_kl(*pair).mean())
    return row | {"variance_ratio": float(found.variance.double().sum() / exact.variance.double().sum())}


def alone(moments: Moments) -> Moments:
    """The same variances, no covariance."""
    return Moments(moments.mean, torch.diag_embed(moments.variance))


def probabilities(found: Moments) -> Tensor:
    """By the probit link."""
    prediction = lw.Categorical().predictive(found, "probit")
    assert isinstance(prediction, Classification)
    return prediction.probs
