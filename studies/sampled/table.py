"""Table 5.1: NLL by where the evidence is taken, how many precisions the prior has, and how the precision is held.

Five families of networks of about 15, 29 and 46 thousand weights, on 8 × 8 digits and on MNIST. Networks are trained on
all training images; the curvature is that of the first of them, each of which stands for its share of all: 500 for the
full covariance, which is exact, and for KFAC; ``--train`` changes that. EM takes the evidence at the mode of the
tangent model, affine or simplified; the lower bound, the default of ``tune``, takes the expected likelihood as it is.
``--only`` may name covariances, priors and places of the evidence too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, TensorDataset

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.networks import weight_count
from benchmarks.report import Row, attempt, tried
from benchmarks.tasks import Task
from lapwing.evaluation.baselines import Map
from lapwing.evaluation.scores import Predictor
from lapwing.posteriors import Posterior
from lapwing.priors import Prior
from studies.sampled.setting import FAMILIES, SIZES, Size, names, task_of

IMAGES, TESTED = 500, 2000
SCORES = ("nll", "ece", "accuracy", "brier")
COLUMNS = ("nll", "nll_over_plain", "ece", "accuracy", "precision", "effective_dimension", "steps", "seconds")

STRUCTURES: dict[str, Any] = {"full": lw.Full(max_bytes=2**33), "KFAC": lw.KFAC()}
PRIORS: dict[str, Prior] = {"single": lw.Isotropic(1.0), "layerwise": lw.Layerwise(1.0)}


def methods(quick: bool) -> dict[str, Any]:
    """Where the evidence is taken."""
    steps = 2 if quick else 15
    return {
        "trained weights": lw.EvidenceGradient(),
        "mode": lw.EM(steps=steps),
        "mode, simplified": lw.EM(steps=steps, target="simplified"),
        "lower bound": None,
    }


def rows(setting: Setting) -> Iterator[Row]:
    """Every row of every network; the plain network first."""
    sizes: tuple[Size, ...] = SIZES[:1] if setting.quick else SIZES
    for data in names(setting):
        for size in setting.among(sizes):
            for family in setting.among(FAMILIES):
                for seed in setting.repeats:
                    task = task_of(setting, data, family, size, seed, IMAGES, TESTED)
                    head: Row = {"part": f"{data}, {size}", "data": data, "size": size}
                    head |= {"network": family, "weights": weight_count(task.model), "images": len(task.train[1])}
                    head["tested"] = len(task.test[1])
                    for row in of_network(task, setting):
                        yield head | {"seed": seed} | row


def of_network(task: Task, setting: Setting) -> Iterator[Row]:
    """The rows of one trained network."""
    plain, ways = scores(Map(task.model), task), methods(setting.quick)
    yield {"structure": "plain", "prior": "", "evidence": ""} | plain
    for held in setting.among(STRUCTURES):
        for prior in setting.among(tuple(PRIORS)[setting.quick :]):
            recipe = lw.Laplace(task.likelihood, prior=PRIORS[prior], structure=STRUCTURES[held])
            fitted, failure = attempt(partial(recipe.fit, task.model, task.train))
            for at in setting.among(ways):
                head: Row = {"structure": held, "prior": prior, "evidence": at, "failure": failure}
                yield head if fitted is None else head | tuned(fitted, ways[at], task, float(plain["nll"]))


def tuned(fitted: Posterior, method: Any, task: Task, plain: float) -> Row:
    """Scores of a posterior tuned in one way, and what tuning did."""
    posterior, row = tried(lambda: lw.tune(fitted, method))
    if posterior is None:
        return row
    row |= {"precision": float(posterior.prior_precisions.log().mean().exp()), "steps": len(posterior.trace)}
    row |= {"precisions": posterior.prior_precisions.tolist()}
    row["effective_dimension"] = float(posterior.effective_dimension())
    found, failure = attempt(lambda: scores(posterior, task))
    return row | {"failure": failure} | ({} if found is None else found | {"nll_over_plain": found["nll"] / plain})


def scores(predictor: Predictor, task: Task) -> Row:
    """Scores on the test images, a few hundred at a time; the link is probit, for posteriors."""
    options = {"link": "probit"} if isinstance(predictor, Posterior) else {}
    found = lw.evaluate(predictor, DataLoader(TensorDataset(*task.test), batch_size=250), **options)
    return {name: found[name] for name in SCORES}
