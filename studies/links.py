"""Every link on every network: the precision chosen on held-out data for each link, and the link with it.

    python -m studies.links --data DIR --json FILE

A study that is run in parts, some pairs a call, is put together by ``--join``.

The moments of the logits at all precisions come from one pass over the held-out data, those of the test data from one
at the precisions that were chosen. Differences are of the test NLL from that of temperature scaling on the same
examples, with their paired standard error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

import lapwing as lw
from lapwing.evaluation import metrics
from lapwing.evaluation.baselines import Map
from lapwing.posteriors import Posterior
from lapwing.predictive import Classification, Link, Moments, held_out_losses, predictive
from studies.pairs import Case, recipes, resnet
from studies.predictors import probabilities
from studies.report import Row, attempt
from studies.runs import command
from studies.seeds import generator

LINKS: tuple[Link, ...] = get_args(Link)
PRECISIONS = tuple(10 ** (k / 4) for k in range(-16, 25))
IMAGES = {"KFAC": 1000, "last layer": 2000}
RECIPES = {
    "KFAC": lw.Laplace(lw.Categorical(), structure=lw.KFAC()),
    "last layer": lw.Laplace(lw.Categorical(), weights=lw.LastLayer(), structure=lw.Full(view="weights")),
}
RESNETS = ("ella_resnet20", "resnet20", "resnet32")
OWN = (
    "digits 150, CNN, 200 epochs",
    "digits 300, MLP, 50 epochs",
    "digits 1200, CNN with batch norm, 10 epochs",
    "MNIST 300, MLP, 100 epochs",
    "MNIST 1000, CNN, 30 epochs",
    "breast cancer 250, MLP, 20 epochs",
    "breast cancer 250, MLP, 100 epochs",
    "wine 80, MLP, 100 epochs",
    "generated table, 0% of labels at random, MLP, 100 epochs",
    "generated table, 30% of labels at random, MLP, 10 epochs",
)
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


@dataclass(frozen=True)
class Setting:
    """The options of the command line.

    Args:
        data: The data folder.
        quick: Whether seconds must do: few precisions, two seeds. Its numbers say little.
        seeds: How often networks are trained here.
        only: Names of the pairs to run, such as resnet20; empty for all.
    """

    data: Path
    quick: bool = False
    seeds: int = 5
    only: tuple[str, ...] = ()


def pairs(setting: Setting) -> Iterator[tuple[str, range, Callable[[int], Mapping[str, Case]]]]:
    """Networks with their data by name: the seeds each is repeated with, and what makes it for every posterior."""

    def read(seed: int, name: str) -> Mapping[str, Case]:
        return {kind: resnet(name, setting.data, images) for kind, images in IMAGES.items()}

    def trained(seed: int, make: Callable[[int], Case]) -> Mapping[str, Case]:
        return dict.fromkeys(IMAGES, make(seed))

    for name in RESNETS:
        if not setting.only or name in setting.only:
            yield name, range(1), partial(read, name=name)
    made = recipes(setting.data)
    for name in setting.only or OWN:
        if name in made:
            yield name, range(2 if setting.quick else setting.seeds), partial(trained, make=made[name])


def rows(setting: Setting) -> Iterator[Row]:
    """Every posterior and link on every network asked for."""
    for name, seeds, made in pairs(setting):
        for seed in seeds:
            for row in of_pair(made(seed), setting):
                yield {"study": "links", "part": name, "seed": seed} | row


def of_pair(cases: Mapping[str, Case], setting: Setting) -> Iterator[Row]:
    """The plain network, temperature scaling, then every posterior by every link."""
    case = next(iter(cases.values()))
    network, (x, y) = Map(case.model, case.likelihood), case.test
    plain = probabilities(network, x)
    scaled, failure = attempt(lambda: network.calibrated(case.validation))
    calibrated = plain if scaled is None else probabilities(scaled, x)
    base = losses(calibrated, y)
    yield {"posterior": "none", "link": "plain network"} | scores(plain, y, base)
    yield {"posterior": "none", "link": "temperature scaling", "failure": failure} | scores(calibrated, y, base)
    for name, case in cases.items():
        posterior = replace(RECIPES[name], likelihood=case.likelihood).fit(case.model, case.train)
        yield from ({"posterior": name} | row for row in by_links(posterior, case, base, setting))


def by_links(posterior: Posterior, case: Case, base: Tensor, setting: Setting) -> Iterator[Row]:
    """A row for each link at its own precision, then one for the link chosen with it."""
    precisions = PRECISIONS[::8] if setting.quick else PRECISIONS
    (x, y), ours = case.validation, posterior.likelihood
    tuning = moments(posterior, x, precisions)
    best: dict[Link, tuple[float, float]] = {}
    for link in LINKS:
        tried = [float(held_out_losses(ours, one, y, link, samples=SAMPLES).double().mean()) for one in tuning]
        best[link] = min(zip(tried, precisions, strict=True))
    distinct = sorted({precision for _, precision in best.values()})
    at = dict(zip(distinct, moments(posterior, case.test[0], distinct), strict=True))
    told: dict[Link, Row] = {}
    for link, (validation, precision) in best.items():
        found = predictive(ours, at[precision], link, samples=SAMPLES, generator=generator())
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
    return -probs.double().clamp_min(1e-38).gather(-1, labels[..., None]).flatten().log()


def scores(probs: Tensor, labels: Tensor, base: Tensor) -> Row:
    """Scores on the test examples, and the difference of the NLL from that of the same examples elsewhere."""
    difference = losses(probs, labels) - base
    row: Row = {"targets": labels.numel(), "difference": float(difference.mean())}
    row["difference_error"] = float(difference.std()) / math.sqrt(labels.numel())
    names = ("nll", "debiased_ece", "ece", "ece_floor", "brier", "accuracy")
    return row | {name: float(getattr(metrics, name)(probs, labels)) for name in names}


main = command("studies.links", __doc__, Setting, pause=5.0)

if __name__ == "__main__":
    main()
