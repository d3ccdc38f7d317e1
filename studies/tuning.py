"""What ``lw.tune(posterior)`` does to a classifier without held-out data, beside plain and temperature-scaled.

    python -m studies.tuning --data DIR --json FILE [--quick]

A row a pair of network and data, and posterior: the NLL of the test data, its difference from the plain network's and
from temperature scaling's (which has validation data), each with the standard error of the paired differences, nats.
The last row counts the pairs that are better than plain, and those that are worse by more than two standard errors.
With the strongest prior a posterior all but equals the network, and its standard error is as small: such ties are
counted apart too.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from studies.report import Row
from studies.runs import command

BATCH = 100
LAST: dict[str, Any] = {"structure": lw.Full(view="weights"), "weights": lw.LastLayer()}

TIE = 1e-3
"""Relative difference from plain below which a posterior of the strongest prior is the network."""


@dataclass(frozen=True)
class Setting:
    """The options of the command line.

    Args:
        data: The data folder, for MNIST and CIFAR-10.
        quick: Whether seconds must do: two pairs.
    """

    data: Path
    quick: bool = False


def rows(setting: Setting) -> Iterator[Row]:
    """All pairs of network and data, each with its posteriors."""
    structures = {0: ("64 draws", lw.Sampled(64)), 4: ("Nyström", lw.Nystrom(50))}
    for number, (name, make) in enumerate(list(recipes(setting.data).items())[: 2 if setting.quick else None]):
        case = make(number)
        yield measured(name, case, "KFAC", structure=lw.KFAC())
        if number % 6 in structures:
            kind, structure = structures[number % 6]
            yield measured(name, case, kind, structure=structure)
        if number % 6 == 3:
            yield measured(name, case, "last layer", **LAST)
    for name in () if setting.quick else ("ella_resnet20", "resnet20"):
        yield measured(name, resnet(name, setting.data, 2000), "last layer", **LAST)
        yield measured(name, resnet(name, setting.data, 1000), "KFAC", structure=lw.KFAC())


def measured(name: str, case: Case, kind: str, **choices: Any) -> Row:
    """One pair and posterior, tuned by default."""
    row: Row = {"study": "tuning", "pair": name, "posterior": kind}
    start = time.perf_counter()
    recipe = lw.Laplace(case.likelihood, **choices)
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
    likelihood = case.likelihood

    def logits(data: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            return torch.cat([likelihood.canonical(case.model(batch.inputs)) for batch in Data(data)])

    try:
        found = Temperature.fit(logits(case.validation), case.validation[1])
    except LapwingError:
        return None
    return -found.probs(logits(case.test)).double().log().gather(-1, case.test[1][..., None]).flatten()


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """How many pairs are better and worse than the plain network, of all and of those that are no ties."""
    ties = [row for row in found if row["strongest_prior"] and abs(row["from_plain"]) < TIE * row["plain"]]
    ratio = torch.tensor([row["nll"] / row["plain"] for row in found], dtype=torch.float64).log().mean().exp()
    counts = {"pairs": len(found), "ties": len(ties), **_counts(found)}
    apart = {f"{name}_without_ties": value for name, value in _counts([r for r in found if r not in ties]).items()}
    yield {"study": "tuning", "verdict": True} | counts | apart | {"nll_over_plain": float(ratio)}


def _counts(found: Sequence[Row]) -> Row:
    """Of some pairs, those better than plain, and those worse by more than two standard errors."""
    worse = [row for row in found if row["from_plain"] > 2 * row["from_plain_stderr"]]
    names = [f"{row['pair']}, {row['posterior']}" for row in worse]
    return {"better": sum(row["from_plain"] < 0 for row in found), "worse": len(worse), "worse_pairs": names}


def _difference(name: str, each: Tensor) -> Row:
    return {f"from_{name}": float(each.mean()), f"from_{name}_stderr": float(each.std() / len(each) ** 0.5)}


def _method(posterior: Any) -> str:
    return "mixtures" if posterior.trace[-1].bound is None else "lower bound"


main = command("studies.tuning", __doc__, Setting)

if __name__ == "__main__":
    main()
