"""What ``lw.tune(posterior)`` does to a classifier without held-out data, beside plain and temperature-scaled.

    python -m studies.tuning --data DIR --json FILE [--quick] [--only trained unseen resnets]

A row a pair of network and data, and posterior: the NLL of the test data, its difference from the plain network's and
from temperature scaling's (which has validation data), each with the standard error of the paired differences, nats;
``unlabelled`` is that of tuning by the inputs of the validation data, whose labels are not read.

Networks on which the rule was chosen are no test of it. Of every four of ``studies.pairs`` two choose and two test, of
the ResNets one chooses; all of ``studies.unseen`` test. A last row for each counts those that are better than plain and
those worse by more than two standard errors. With the strongest prior a posterior all but equals the network,
and its standard error is as small: such ties are counted apart too.

Tuning has no budget of seconds, so that a busy machine gives the same numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.data import Pair, generator
from benchmarks.report import Row, attempt, timed
from benchmarks.table import averaged
from benchmarks.tasks import RESNETS, Task, moments, probabilities
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.likelihoods.density import held_out_losses
from lapwing.predictive import Moments
from lapwing.tuning.held_out.mixup import FACTORS
from lapwing.tuning.tune import default
from studies import pairs, unseen
from studies.links import losses

LAST: dict[str, Any] = {"structure": lw.Full(view="weights"), "weights": lw.LastLayer()}

MIXTURES = 128
"""Mixtures on which a ResNet of which all weights are uncertain is tuned."""

CHOSEN_LATER = ("sequences, GRU",)
"""Meant to test, it showed that labels of each token need a rule, which it so chose."""

TIE = 1e-3
"""Relative difference from plain below which a posterior of the strongest prior is the network."""


@dataclass(frozen=True)
class Case:
    """A row to be.

    Args:
        name: Of network and data.
        chooses: Whether the rule was chosen on this network.
        make: The network and its data.
        kind: Of posterior.
        options: Those of ``Laplace``.
        method: What the default is told.
    """

    name: str
    chooses: bool
    make: Callable[[], Task]
    kind: str
    options: Mapping[str, Any]
    method: Mapping[str, Any] = field(default_factory=dict)


def rows(setting: Setting) -> Iterator[Row]:
    """All cases, those that test first, and of them photographs, which take longest, last."""
    for case in sorted(cases(setting), key=lambda case: (case.chooses, case.name.startswith("CIFAR"))):
        names = {"pair": case.name, "posterior": case.kind, "chooses": case.chooses}
        yield setting.resumed(names, partial(_row, case))


def _row(case: Case) -> Row:
    return measured(case.make(), case.options, case.method)


def cases(setting: Setting) -> Iterator[Case]:
    """All of them, or of the groups that are asked for."""
    groups = {"trained": trained, "unseen": unmet, "resnets": resnets}
    for group in setting.among(groups):
        yield from groups[group](setting)


def trained(setting: Setting) -> Iterator[Case]:
    """Those of ``studies.pairs``."""
    more: dict[int, tuple[str, dict[str, Any]]] = {
        0: ("64 draws", {"structure": lw.Sampled(64)}),
        3: ("last layer", LAST),
        4: ("Nyström", {"structure": lw.Nystrom(50)}),
    }
    for number, (name, make) in enumerate(list(pairs.recipes(setting))[: 2 if setting.quick else None]):
        build = partial(make, number)
        chooses = number % 4 < 2 or name in CHOSEN_LATER
        yield Case(name, chooses, build, "KFAC", {"structure": lw.KFAC()})
        if number % 6 in more:
            yield Case(name, chooses, build, *more[number % 6])


def unmet(setting: Setting) -> Iterator[Case]:
    """Those of ``studies.unseen``."""
    if setting.quick:
        return
    for number, (name, make) in enumerate(unseen.recipes(setting)):
        build = partial(make, number)
        yield Case(name, False, build, "KFAC", {"structure": lw.KFAC()})
        if number % 5 == 0:
            yield Case(name, False, build, "last layer", LAST)


def resnets(setting: Setting) -> Iterator[Case]:
    """ResNets trained elsewhere; with all weights of fewer mixtures, about as many as the usual budget buys."""
    for name in () if setting.quick else RESNETS:
        chooses = name == "resnet20"
        yield Case(name, chooses, partial(Task.read, name, setting, 2000), "last layer", LAST)
        fewer = {"examples": MIXTURES}
        yield Case(name, chooses, partial(Task.read, name, setting, 1000), "KFAC", {"structure": lw.KFAC()}, fewer)


def measured(case: Task, options: Mapping[str, Any], method: Mapping[str, Any]) -> Row:
    """One network and posterior, tuned by default.

    Args:
        case: The network and its data.
        options: Those of ``Laplace``.
        method: What ``Mixup`` is told, where it is the default.
    """
    recipe = lw.Laplace(case.likelihood, **options)
    posterior, fitting = timed(lambda: recipe.fit(case.model, case.train, generator=generator()))
    chosen = default(posterior)
    if isinstance(chosen, lw.Mixup):
        chosen = replace(chosen, seconds=None, **method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuned, tuning = timed(lambda: lw.tune(posterior, chosen))
    row: Row = {"fit_seconds": fitting, "tune_seconds": tuning}
    ours, plain = losses_of(tuned, case.test)
    scaled = temperature_scaled(case)
    row |= {"link": tuned.link, "precision": float(tuned.prior_precisions[0]), "method": _method(tuned)}
    row |= {"nll": float(ours.mean()), "plain": float(plain.mean())}
    row |= averaged({"from_plain": (ours - plain).tolist()})
    strongest = posterior.prior_precisions * FACTORS[1]
    row["strongest_prior"] = bool((tuned.prior_precisions > 0.99 * strongest).all())
    if scaled is not None:
        row["temperature"] = float(scaled.mean())
        row |= averaged({"from_temperature": (ours - scaled).tolist()})
    if isinstance(chosen, lw.Mixup):
        row |= without_labels(posterior, replace(chosen, unlabelled=case.held_out[0]), case.test)
    return row


def without_labels(posterior: lw.Posterior, method: lw.Mixup, test: Pair) -> Row:
    """The same tuned by the inputs of the validation data, whose labels are not read; empty where it cannot be."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuned, _ = attempt(lambda: lw.tune(posterior, method))
    if tuned is None:
        return {}
    ours, plain = losses_of(tuned, test)
    return {"unlabelled": float(ours.mean())} | averaged({"unlabelled_from_plain": (ours - plain).tolist()})


def losses_of(posterior: lw.Posterior, data: Pair) -> Pair:
    """Loss of every target by the posterior, and by the network alone."""
    likelihood, (found,) = posterior.likelihood, moments(posterior, data[0], [posterior])
    options = {"temperature": posterior.temperature}
    ours = held_out_losses(likelihood, found, data[1], posterior.link, **options)
    theirs = held_out_losses(likelihood, Moments.certain(found.mean), data[1], "probit")
    return ours.double(), theirs.double()


def temperature_scaled(case: Task) -> Tensor | None:
    """Loss of every test target by temperature scaling on validation data; ``None`` where no temperature is best."""
    scaled, _ = attempt(lambda: PlainNetwork(case.model, case.likelihood).calibrated(case.held_out))
    return None if scaled is None else losses(probabilities(scaled, case.test[0]), case.test[1])


def verdicts(found: Sequence[Row]) -> Iterator[Row]:
    """What the rows show that choose, and those that test."""
    for chooses in (True, False):
        some = [row for row in found if row["chooses"] == chooses]
        if some:
            yield {"verdict": "rows that choose" if chooses else "rows that test"} | verdict(some)


def verdict(found: Sequence[Row]) -> Row:
    """How many pairs are better and worse than the plain network, of all and of those that are no ties."""
    ties = [row for row in found if row["strongest_prior"] and abs(row["from_plain"]) < TIE * row["plain"]]
    counts = {"pairs": len(found), "ties": len(ties), **_counts(found)}
    apart = {f"{name}_without_ties": value for name, value in _counts([r for r in found if r not in ties]).items()}
    scaled = [row["temperature"] / row["plain"] for row in found if "temperature" in row]
    means = {"nll_over_plain": geometric_mean([row["nll"] / row["plain"] for row in found])}
    if scaled:
        means["temperature_over_plain"] = geometric_mean(scaled)
    unlabelled = [row for row in found if "unlabelled" in row]
    if unlabelled:
        means["unlabelled_over_plain"] = geometric_mean([row["unlabelled"] / row["plain"] for row in unlabelled])
        worse = [row for row in unlabelled if row["unlabelled_from_plain"] > 2 * row["unlabelled_from_plain_stderr"]]
        counts["unlabelled_worse_pairs"] = [f"{row['pair']}, {row['posterior']}" for row in worse]
    return counts | apart | means


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of numbers above zero."""
    return float(torch.tensor(ratios, dtype=torch.float64).log().mean().exp())


def _counts(found: Sequence[Row]) -> Row:
    """Of some pairs, those better than plain, and those worse by more than two standard errors."""
    worse = [row for row in found if row["from_plain"] > 2 * row["from_plain_stderr"]]
    names = [f"{row['pair']}, {row['posterior']}" for row in worse]
    return {"better": sum(row["from_plain"] < 0 for row in found), "worse": len(worse), "worse_pairs": names}


def _method(posterior: Any) -> str:
    step = posterior.trace[-1]
    return "lower bound" if step.bound is not None else "evidence" if step.validation_nll is None else "mixtures"


STUDY = Study(rows, verdict=verdicts, needs="MNIST, CIFAR-10 and the trained networks")

if __name__ == "__main__":
    main({"tuning": STUDY})
