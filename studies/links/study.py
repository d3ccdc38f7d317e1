"""Every link on every network: the precision chosen on held-out data for each link, and the link with it.

The moments of the logits at all precisions come from one pass over the held-out data, those of the test data from one
at the precisions that were chosen. Differences are of the test NLL from that of temperature scaling on the same
examples, with their paired standard error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import get_args

import torch
from torch import Tensor

import lapwing as lw
from lapwing import metrics
from lapwing.baselines import Map
from lapwing.posteriors import Posterior
from lapwing.predictive import Classification, Link, Moments, held_out_losses, predictive
from studies.links.pairs import Case, Setting, cases
from studies.predictors import probabilities
from studies.report import Row, attempt
from studies.seeds import generator

LINKS: tuple[Link, ...] = get_args(Link)
PRECISIONS = tuple(10 ** (k / 4) for k in range(-8, 25))
CURVATURE = {"KFAC": 1000, "last layer": 2000}
BATCH = 50
SAMPLES = 256
COLUMNS = (
    "nll",
    "difference",
    "difference_error",
    "debiased_ece",
    "ece",
    "ece_floor",
    "brier",
    "accuracy",
    "precision",
)


def rows(setting: Setting) -> Iterator[Row]:
    """Every posterior and link on every network asked for."""
    for name, (seeds, made) in cases(setting).items():
        for seed in seeds:
            for row in of_case(made(seed), setting):
                yield {"study": "links", "part": name, "seed": seed} | row


def of_case(case: Case, setting: Setting) -> Iterator[Row]:
    """The plain network, temperature scaling, then every posterior by every link."""
    x, y = case.test
    plain = probabilities(Map(case.model), x)
    scaled, failure = attempt(lambda: Map(case.model).calibrated(case.held_out))
    calibrated = plain if scaled is None else probabilities(scaled, x)
    base = losses(calibrated, y)
    yield {"posterior": "none", "link": "plain network"} | scores(plain, y, base)
    yield {"posterior": "none", "link": "temperature scaling", "failure": failure} | scores(calibrated, y, base)
    for name in CURVATURE:
        posterior = fitted(name, case)
        yield from ({"posterior": name} | row for row in by_links(posterior, case, base, setting))


def fitted(name: str, case: Case) -> Posterior:
    """The posterior from some of the training examples, which stand for all."""
    x, y = (part[: CURVATURE[name]] for part in case.train)
    likelihood = lw.Categorical(weight=1.0 if case.population is None else case.population / len(y))
    weights = lw.LastLayer() if name == "last layer" else lw.All()
    batches = list(zip(x.split(100), y.split(100), strict=True))
    return lw.Laplace(likelihood, weights=weights, structure=lw.KFAC()).fit(case.model, batches)


def by_links(posterior: Posterior, case: Case, base: Tensor, setting: Setting) -> Iterator[Row]:
    """A row for each link at its own precision, then one for the link chosen with it."""
    precisions = PRECISIONS[::8] if setting.quick else PRECISIONS
    (x, y), unweighted = case.held_out, lw.Categorical()
    tuning = moments(posterior, x, precisions)
    best: dict[Link, tuple[float, float]] = {}
    for link in LINKS:
        tried = [float(held_out_losses(unweighted, one, y, link, samples=SAMPLES).double().mean()) for one in tuning]
        best[link] = min(zip(tried, precisions, strict=True))
    distinct = sorted({precision for _, precision in best.values()})
    at = dict(zip(distinct, moments(posterior, case.test[0], distinct), strict=True))
    told: dict[Link, Row] = {}
    for link, (validation, precision) in best.items():
        found = predictive(unweighted, at[precision], link, samples=SAMPLES, generator=generator())
        assert isinstance(found, Classification)
        told[link] = {"precision": precision, "validation_nll": validation} | scores(found.probs, case.test[1], base)
        yield {"link": link} | told[link]
    chosen = min(("probit", "pairwise", "qmc"), key=lambda link: best[link][0])
    yield {"link": "chosen", "was": [chosen]} | told[chosen]


def moments(posterior: Posterior, x: Tensor, precisions: Sequence[float]) -> list[Moments]:
    """Of the logits at every precision, from one pass over the inputs."""
    choices = [posterior.with_choices(lw.Isotropic(value), posterior.likelihood) for value in precisions]
    parts = [posterior.outputs_each(part, choices) for part in x.split(BATCH)]
    return [
        Moments(torch.cat([one.mean for one in same]), torch.cat([one.covariance for one in same]))
        for same in zip(*parts, strict=True)
    ]


def losses(probs: Tensor, labels: Tensor) -> Tensor:
    """Negative log probability of each label, nats."""
    return -probs.double().clamp_min(1e-38).gather(1, labels[:, None])[:, 0].log()


def scores(probs: Tensor, labels: Tensor, base: Tensor) -> Row:
    """Scores on the test examples, and the difference of the NLL from that of the same examples elsewhere."""
    difference = losses(probs, labels) - base
    row: Row = {"test_examples": len(labels), "difference": float(difference.mean())}
    row["difference_error"] = float(difference.std()) / math.sqrt(len(labels))
    names = ("nll", "debiased_ece", "ece", "ece_floor", "brier", "accuracy")
    return row | {name: float(getattr(metrics, name)(probs, labels)) for name in names}
