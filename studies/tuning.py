"""What ``lw.tune(posterior)`` does to a classifier without held-out data, beside plain and temperature-scaled.

    python -m studies.tuning --data DIR --json FILE [--quick]

A row a pair of network and data, and posterior: the NLL of the test data, its difference from the plain network's and
from temperature scaling's (which has validation data), each with the standard error of the paired differences, nats.
The last row counts the pairs that are better than plain, and those that are worse by more than two standard errors.
With the strongest prior a posterior all but equals the network, and its standard error is as small: such ties are
counted apart too.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lapwing as lw
from lapwing.evaluation.baselines import Temperature
from lapwing.ground.data import Data
from lapwing.ground.errors import LapwingError
from lapwing.predictive import Moments, held_out_losses
from lapwing.tuning.mixup import BOUNDS
from studies.pairs import Case, recipes, resnet
from studies.report import Row, collect, shown

BATCH = 100

TIE = 1e-3
"""Relative difference from plain below which a posterior of the strongest prior is the network."""


def rows(folder: Path, quick: bool) -> Iterator[Row]:
    """All pairs, then the verdict."""
    found: list[Row] = []
    for row in shown(_pairs(folder, quick)):
        found.append(row)
        yield row
    yield verdict(found)


def _pairs(folder: Path, quick: bool) -> Iterator[Row]:
    for number, recipe in enumerate(list(recipes(folder))[: 2 if quick else None]):
        case = recipe.make(number)
        yield measured(case, "KFAC", lw.Laplace(_likelihood(case), structure=lw.KFAC()))
        if number % 6 == 0:
            yield measured(case, "64 draws", lw.Laplace(_likelihood(case), structure=lw.Sampled(64)))
        if number % 6 == 3:
            last = lw.Laplace(_likelihood(case), structure=lw.Full(view="weights"), weights=lw.LastLayer())
            yield measured(case, "last layer", last)
        if number % 6 == 4:
            yield measured(case, "Nyström", lw.Laplace(_likelihood(case), structure=lw.Nystrom(50)))
    for name in () if quick else ("ella_resnet20", "resnet20"):
        case = resnet(name, folder, 2000)
        last = lw.Laplace(_likelihood(case), structure=lw.Full(view="weights"), weights=lw.LastLayer())
        yield measured(case, "last layer", last)
        case = resnet(name, folder, 1000)
        yield measured(case, "KFAC", lw.Laplace(_likelihood(case), structure=lw.KFAC()))


def measured(case: Case, kind: str, recipe: lw.Laplace) -> Row:
    """One pair and posterior, tuned by default."""
    row: Row = {"study": "tuning", "pair": case.name, "posterior": kind}
    start = time.perf_counter()
    posterior = recipe.fit(case.model, case.train, generator=torch.Generator().manual_seed(0))
    row["fit_seconds"] = time.perf_counter() - start
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuned = lw.tune(posterior)
    row["tune_seconds"] = time.perf_counter() - start
    losses, plain = losses_of(tuned, case.test)
    scaled = temperature_scaled(case)
    row |= {"link": tuned.link, "precision": float(tuned.prior_precisions[0]), "method": _method(tuned)}
    row |= {"nll": float(losses.mean()), "plain": float(plain.mean())}
    row |= _difference("plain", losses - plain)
    strongest = posterior.prior_precisions * BOUNDS[1]
    row["strongest_prior"] = bool((tuned.prior_precisions > 0.99 * strongest).all())
    if scaled is not None:
        row["temperature"] = float(scaled.mean())
        row |= _difference("temperature", losses - scaled)
    return row


def losses_of(posterior: lw.Posterior, data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Loss of every target by the posterior, and by the network alone."""
    ours, theirs = [], []
    for x, y in zip(*(part.split(BATCH) for part in data), strict=True):
        (moments,) = posterior.outputs_each(x, [posterior])
        likelihood = posterior.likelihood
        ours.append(held_out_losses(likelihood, moments, y, posterior.link, temperature=posterior.temperature))
        theirs.append(held_out_losses(likelihood, Moments.certain(moments.mean), y, "probit"))
    return torch.cat(ours).double(), torch.cat(theirs).double()


def temperature_scaled(case: Case) -> Tensor | None:
    """Loss of every test target by temperature scaling on validation data; ``None`` where no temperature is best."""
    likelihood = _likelihood(case)

    def logits(data: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            return torch.cat([likelihood.canonical(case.model(batch.inputs)) for batch in Data(data)])

    try:
        found = Temperature.fit(logits(case.validation), case.validation[1])
    except LapwingError:
        return None
    return -found.probs(logits(case.test)).double().log().gather(-1, case.test[1][..., None]).flatten()


def verdict(found: Sequence[Row]) -> Row:
    """How many pairs are better and worse than the plain network, of all and of those that are no ties."""
    ties = [row for row in found if row["strongest_prior"] and abs(row["from_plain"]) < TIE * row["plain"]]
    ratio = torch.tensor([row["nll"] / row["plain"] for row in found], dtype=torch.float64).log().mean().exp()
    counts = {"pairs": len(found), "ties": len(ties), **_counts(found)}
    apart = {f"{name}_without_ties": value for name, value in _counts([r for r in found if r not in ties]).items()}
    return {"study": "tuning", "verdict": True} | counts | apart | {"nll_over_plain": float(ratio)}


def _counts(found: Sequence[Row]) -> Row:
    """Of some pairs, those better than plain, and those worse by more than two standard errors."""
    worse = [row for row in found if row["from_plain"] > 2 * row["from_plain_stderr"]]
    names = [f"{row['pair']}, {row['posterior']}" for row in worse]
    return {"better": sum(row["from_plain"] < 0 for row in found), "worse": len(worse), "worse_pairs": names}


def _difference(name: str, each: Tensor) -> Row:
    return {f"from_{name}": float(each.mean()), f"from_{name}_stderr": float(each.std() / len(each) ** 0.5)}


def _likelihood(case: Case) -> lw.Categorical:
    weight = case.stands_for / len(case.train[1])
    return lw.Categorical(event_dim=case.event_dim, class_dim=case.class_dim, weight=weight)


def _method(posterior: Any) -> str:
    return "mixtures" if posterior.trace[-1].bound is None else "lower bound"


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, run the study, write its report after every row."""
    parser = argparse.ArgumentParser(prog="python -m studies.tuning", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="report to write")
    parser.add_argument("--data", type=Path, required=True, help="data folder, for MNIST and CIFAR-10")
    parser.add_argument("--quick", action="store_true", help="two pairs, to try it out")
    args = parser.parse_args(arguments)
    found = collect(rows(args.data, args.quick), args.json)
    sys.stdout.write(str(found[-1]) + "\n")


if __name__ == "__main__":
    main()
