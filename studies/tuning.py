"""What ``lw.tune(posterior)`` does to a classifier without held-out data, beside plain and temperature-scaled.

    python -m studies.tuning --data DIR --json FILE [--quick]

A row a pair of network and data, and posterior: the NLL of the test data, its difference from the plain network's and
from temperature scaling's (which has validation data), each with the standard error of the paired differences, nats.
The last row counts the pairs that are better than plain, and those that are worse by more than two standard errors.
With the strongest prior a posterior all but equals the network, and its standard error is as small: such ties are
counted apart too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.data import Pair, generator
from benchmarks.report import Row, attempt, timed
from benchmarks.table import averaged
from benchmarks.tasks import Task, moments, probabilities
from lapwing.evaluation.baselines import PlainNetwork
from lapwing.likelihoods.density import held_out_losses
from lapwing.predictive import Moments
from lapwing.tuning.held_out.mixup import FACTORS
from studies.links import losses
from studies.pairs import recipes

LAST: dict[str, Any] = {"structure": lw.Full(view="weights"), "weights": lw.LastLayer()}

TIE = 1e-3
"""Relative difference from plain below which a posterior of the strongest prior is the network."""


def rows(setting: Setting) -> Iterator[Row]:
    """All pairs."""
    for number, (_, make) in enumerate(list(recipes(setting))[: 2 if setting.quick else None]):
        case = make(number)
        yield measured(case, "KFAC", structure=lw.KFAC())
        if number % 6 == 0:
            yield measured(case, "64 draws", structure=lw.Sampled(64))
        if number % 6 == 3:
            yield measured(case, "last layer", **LAST)
        if number % 6 == 4:
            yield measured(case, "Nyström", structure=lw.Nystrom(50))
    for name in () if setting.quick else ("ella_resnet20", "resnet20"):
        yield measured(Task.read(name, setting, 2000), "last layer", **LAST)
        yield measured(Task.read(name, setting, 1000), "KFAC", structure=lw.KFAC())


def measured(case: Task, kind: str, **options: Any) -> Row:
    """One pair and posterior, tuned by default; the options are those of ``Laplace``."""
    recipe = lw.Laplace(case.likelihood, **options)
    posterior, fitting = timed(lambda: recipe.fit(case.model, case.train, generator=generator()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuned, tuning = timed(lambda: lw.tune(posterior))
    row: Row = {"pair": case.name, "posterior": kind, "fit_seconds": fitting, "tune_seconds": tuning}
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
    return row


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


def verdict(found: Sequence[Row]) -> Row:
    """How many pairs are better and worse than the plain network, of all and of those that are no ties."""
    ties = [row for row in found if row["strongest_prior"] and abs(row["from_plain"]) < TIE * row["plain"]]
    ratio = torch.tensor([row["nll"] / row["plain"] for row in found], dtype=torch.float64).log().mean().exp()
    counts = {"pairs": len(found), "ties": len(ties), **_counts(found)}
    apart = {f"{name}_without_ties": value for name, value in _counts([r for r in found if r not in ties]).items()}
    return {"verdict": True} | counts | apart | {"nll_over_plain": float(ratio)}


def _counts(found: Sequence[Row]) -> Row:
    """Of some pairs, those better than plain, and those worse by more than two standard errors."""
    worse = [row for row in found if row["from_plain"] > 2 * row["from_plain_stderr"]]
    names = [f"{row['pair']}, {row['posterior']}" for row in worse]
    return {"better": sum(row["from_plain"] < 0 for row in found), "worse": len(worse), "worse_pairs": names}


def _method(posterior: Any) -> str:
    step = posterior.trace[-1]
    return "lower bound" if step.bound is not None else "evidence" if step.validation_nll is None else "mixtures"


STUDY = Study(rows, verdict=lambda found: [verdict(found)], needs="MNIST, CIFAR-10 and the trained networks")

if __name__ == "__main__":
    main({"tuning": STUDY})
