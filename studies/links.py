"""Which link turns uncertain logits into the best probabilities, and whether held-out data know it.

    python -m studies.links --data DIR --json FILE

The moments of the logits at all precisions come from one pass over the held-out data, those of the test data from one
at the precisions that were chosen. "chosen" is what ``lw.tune(posterior, loader)`` takes. Differences are of the test
NLL from that of temperature scaling on the same examples, with their paired standard error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, get_args

import torch
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.data import generator
from benchmarks.report import Row, attempt
from benchmarks.table import averaged
from benchmarks.tasks import BATCH, RESNETS, Task, moments, scored
from lapwing.evaluation.plain_network import PlainNetwork, Temperature
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import ConvergenceWarning
from lapwing.posteriors import Posterior
from lapwing.predictive import Classification, Link
from lapwing.tuning.held_out.budget import Budget
from lapwing.tuning.held_out.outputs import HeldOut, held_out_outputs
from lapwing.tuning.held_out.search import HeldOutSearch, candidates
from lapwing.tuning.held_out.validation import FACTORS
from studies.pairs import recipes

LINKS: tuple[Link, ...] = get_args(Link)
CALIBRATORS = {"structured vector scaling": "svs", "structured matrix scaling": "sms"}
"""Of Berta et al. (2025), where ``probmetrics`` is installed, by its names."""
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
COLUMNS = ("nll", "difference", "debiased_ece", "ece", "ece_floor", "brier", "accuracy", "precision", "temperature")


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
    """The plain network, calibrators of it, then every posterior by every link."""
    case = next(iter(cases.values()))
    network = PlainNetwork(case.model, case.likelihood)
    x, y = case.test
    held_out, labels = (outputs_of(network, case.held_out[0]), case.held_out[1])
    logits = outputs_of(network, x)
    plain = logits.softmax(-1)
    scaled, failure = attempt(lambda: Temperature.fit(held_out, labels))
    free, unpenalised_failure = attempt(lambda: Temperature.fit(held_out, labels, penalised=False))
    calibrated = plain if scaled is None else scaled.probs(logits)
    base = losses(calibrated, y)
    alone: Row = {"posterior": "none"}
    yield alone | {"link": "plain network"} | scores(plain, y, base)
    yield alone | {"link": "temperature scaling", "failure": failure} | scores(calibrated, y, base)
    unpenalised = plain if free is None else free.probs(logits)
    yield (
        alone
        | {"link": "temperature scaling without its penalty", "failure": unpenalised_failure}
        | scores(unpenalised, y, base)
    )
    for name in CALIBRATORS:
        probs = structured(name, held_out, labels, logits)
        if probs is not None:
            yield alone | {"link": name} | scores(probs, y, base)
    for name, case in cases.items():
        posterior = replace(RECIPES[name], likelihood=case.likelihood).fit(case.model, case.train)
        yield from ({"posterior": name} | row for row in by_links(posterior, case, base))


def outputs_of(network: PlainNetwork, x: Tensor) -> Tensor:
    """Logits of a hundred images at a time."""
    return torch.cat([network.outputs(part) for part in x.split(BATCH)])


def structured(name: str, held_out: Tensor, labels: Tensor, logits: Tensor) -> Tensor | None:
    """Probabilities by a calibrator of ``probmetrics``; ``None`` where that is not installed."""
    try:
        calibrators: Any = import_module("probmetrics.calibrators")
        distributions: Any = import_module("probmetrics.distributions")
    except ImportError:
        return None
    calibrator = calibrators.get_calibrator(CALIBRATORS[name])
    calibrator.fit_torch(distributions.CategoricalLogits(held_out), labels)
    return calibrator.predict_proba_torch(distributions.CategoricalLogits(logits)).get_probs()


def by_links(posterior: Posterior, case: Task, base: Tensor) -> Iterator[Row]:
    """A row for each link at its own precision, one for the best of them, and one for what tuning takes."""
    searches: dict[str, tuple[Link | None, bool]] = {link: (link, False) for link in LINKS}
    searches |= {"chosen, no temperature": (None, False), "chosen": (None, True)}
    batches = list(Data(case.held_out, like=posterior.network.like))
    data = held_out_outputs(posterior, batches, FACTORS, Budget())
    tuned = {name: found(data, *options) for name, options in searches.items()}
    at_test = moments(posterior, case.test[0], list(tuned.values()))
    for (name, one), outputs in zip(tuned.items(), at_test, strict=True):
        predicted = one.likelihood.predictive(
            outputs, one.link, temperature=one.temperature, samples=SAMPLES, generator=generator()
        )
        assert isinstance(predicted, Classification)
        yield {
            "link": name,
            "was": [one.link],
            "temperature": one.temperature,
            "precision": float(one.prior_precisions.max()),
            "validation_nll": one.trace[-1].validation_nll,
        } | scores(predicted.probs, case.test[1], base)


def found(data: HeldOut[Posterior], link: Link | None, temperature: bool) -> Posterior:
    """What ``Validation`` finds, by outputs that several searches share."""
    network = link != "bridge"
    links = candidates(data.posterior, link)
    search = HeldOutSearch("Validation", data, links, temperature=temperature, network=network, average=temperature)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return search.run(progress=False)


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
