"""Which link turns uncertain logits into the best probabilities, and whether held-out data know it.

    python -m studies.links --data DIR --json FILE

The moments of the logits at all precisions come from one pass over the held-out data, those of the test data from one
at the precisions that were chosen. Differences are of the test NLL from that of temperature scaling on the same
examples, with their paired standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import get_args

from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.data import generator
from benchmarks.report import Row, attempt
from benchmarks.table import averaged
from benchmarks.tasks import RESNETS, Task, moments, probabilities, scored
from lapwing.evaluation.baselines import PlainNetwork
from lapwing.likelihoods.density import held_out_losses
from lapwing.posteriors import Posterior
from lapwing.predictive import Classification, Link
from studies.pairs import recipes

LINKS: tuple[Link, ...] = get_args(Link)
PRECISIONS = tuple(10 ** (k / 4) for k in range(-16, 25))
IMAGES = {"KFAC": 1000, "last layer": 2000}
RECIPES = {
    "KFAC": lw.Laplace(lw.Categorical(), structure=lw.KFAC()),
    "last layer": lw.Laplace(lw.Categorical(), weights=lw.LastLayer(), structure=lw.Full(view="weights")),
}
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
SAMPLES = 256
COLUMNS = ("nll", "difference", "debiased_ece", "ece", "ece_floor", "brier", "accuracy", "precision")


def pairs(setting: Setting) -> Iterator[tuple[str, range, Callable[[int], Mapping[str, Task]]]]:
    """Networks with their data by name: the seeds each is repeated with, and what makes it for every posterior."""

    def read(seed: int, name: str) -> Mapping[str, Task]:
        return {kind: Task.read(name, setting, images) for kind, images in IMAGES.items()}

    def trained(seed: int, make: Callable[[int], Task]) -> Mapping[str, Task]:
        return dict.fromkeys(IMAGES, make(seed))

    made = dict(recipes(setting))
    names = setting.among((*RESNETS, *made), OWN[-3:-2] if setting.quick else (*RESNETS, *OWN))
    for name in names:
        if name in RESNETS:
            yield name, range(1), partial(read, name=name)
        else:
            yield name, setting.repeats, partial(trained, make=made[name])


def rows(setting: Setting) -> Iterator[Row]:
    """Every posterior and link on every network asked for."""
    for name, seeds, made in pairs(setting):
        for seed in seeds:
            for row in of_pair(made(seed), setting):
                yield {"part": name, "seed": seed} | row


def of_pair(cases: Mapping[str, Task], setting: Setting) -> Iterator[Row]:
    """The plain network, temperature scaling, then every posterior by every link."""
    case = next(iter(cases.values()))
    network, (x, y) = PlainNetwork(case.model, case.likelihood), case.test
    plain = probabilities(network, x)
    scaled, failure = attempt(lambda: network.calibrated(case.held_out))
    calibrated = plain if scaled is None else probabilities(scaled, x)
    base = losses(calibrated, y)
    yield {"posterior": "none", "link": "plain network"} | scores(plain, y, base)
    yield {"posterior": "none", "link": "temperature scaling", "failure": failure} | scores(calibrated, y, base)
    for name, case in cases.items():
        posterior = replace(RECIPES[name], likelihood=case.likelihood).fit(case.model, case.train)
        yield from ({"posterior": name} | row for row in by_links(posterior, case, base, setting))


def by_links(posterior: Posterior, case: Task, base: Tensor, setting: Setting) -> Iterator[Row]:
    """A row for each link at its own precision, then one for the link chosen with it."""
    precisions = PRECISIONS[::8] if setting.quick else PRECISIONS
    (x, y), ours = case.held_out, posterior.likelihood
    tuning = moments(posterior, x, at(posterior, precisions))
    best: dict[Link, tuple[float, float]] = {}
    for link in LINKS:
        tried = [float(held_out_losses(ours, one, y, link, samples=SAMPLES).double().mean()) for one in tuning]
        best[link] = min(zip(tried, precisions, strict=True))
    distinct = sorted({precision for _, precision in best.values()})
    found_at = dict(zip(distinct, moments(posterior, case.test[0], at(posterior, distinct)), strict=True))
    told: dict[Link, Row] = {}
    for link, (validation, precision) in best.items():
        found = ours.predictive(found_at[precision], link, samples=SAMPLES, generator=generator())
        assert isinstance(found, Classification)
        told[link] = {"precision": precision, "validation_nll": validation} | scores(found.probs, case.test[1], base)
        yield {"link": link} | told[link]
    chosen = min(("probit", "pairwise", "qmc"), key=lambda link: best[link][0])
    yield {"link": "chosen", "was": [chosen]} | told[chosen]


def at(posterior: Posterior, precisions: Sequence[float]) -> list[Posterior]:
    """The posterior at several prior precisions."""
    return [posterior.with_hyperparameters(lw.Isotropic(value), posterior.likelihood) for value in precisions]


def losses(probs: Tensor, labels: Tensor) -> Tensor:
    """Negative log probability of each label, nats."""
    return -probs.double().clamp_min(1e-38).gather(-1, labels[..., None]).flatten().log()


def scores(probs: Tensor, labels: Tensor, base: Tensor) -> Row:
    """Scores on the test examples, and the difference of the NLL from that of the same examples elsewhere."""
    difference = losses(probs, labels) - base
    row: Row = {"targets": labels.numel()} | averaged({"difference": difference.tolist()})
    return row | scored(probs, labels, "nll", "debiased_ece", "ece", "ece_floor", "brier", "accuracy")


STUDY = Study(rows, COLUMNS, needs="MNIST, CIFAR-10 and the trained networks")

if __name__ == "__main__":
    main({"links": STUDY})
