"""The CIFAR-10 table: ELLA as published and with what it leaves open, beside what it is compared with.

    python -m studies.ella cifar --data DIR --json FILE [--networks ella_resnet20] [--only METHOD ...] [--seeds 5]

The first 300 test images stop ELLA early, tune by validation and fit the temperature; all methods are scored on the
other 717. The paper's prior is 1 / (N γ) for N = 50,000 and the weight decay γ = 1e-4, a precision of 5. ELLA reads the
training images in their order until it stops; the others have the first 2000. All predict with 512 draws of the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import lapwing as lw
from benchmarks.cifar_table import RECIPES
from benchmarks.cost import peak_gib, reset_peak, timed
from lapwing.evaluation.baselines import Map
from lapwing.posteriors import NystromPosterior, Posterior
from studies.ella.augment import STRENGTHS, augmentation
from studies.ella.scored import Drawn, at_precision, ella, scores, watched
from studies.ella.setting import Amount, Case, Setting
from studies.report import Row, attempt
from studies.sampled.resnets import RESNETS

COLUMNS = (
    "nll", "nll_over_plain", "ece", "accuracy", "brier", "precision", "stopped_at", "kernel_error", "fit_seconds",
    "tune_seconds", "predict_seconds", "fit_gib", "predict_gib",
)  # fmt: skip
VALIDATED, ALL = "ELLA, validation images", "ELLA, all images"
AUGMENTED = {f"ELLA, {name} augmentation": strength for name, strength in STRENGTHS.items()}
OTHERS: dict[str, Callable[[], lw.Laplace]] = RECIPES | {
    "last layer, KFAC": lambda: lw.Laplace(lw.Categorical(), structure=lw.KFAC(), weights=lw.LastLayer())
}


def rows(setting: Setting) -> Iterator[Row]:
    """Every method on every network."""
    for case in setting.cases(RESNETS):
        for row in of_network(case, setting):
            yield {"study": "cifar", "part": case.task.name} | row


def of_network(case: Case, setting: Setting) -> Iterator[Row]:
    """Every method on one network, those without randomness once."""
    if setting.wants("plain"):
        yield {"method": "plain", "prior": ""} | scores(Map(case.task.model), case)
    if setting.wants("temperature scaling"):
        found, failure = attempt(lambda: Map(case.task.model).calibrated(case.task.held_out))
        row = {"failure": failure} if found is None else scores(found, case)
        yield {"method": "temperature scaling", "prior": ""} | row
    for seed in setting.repeats:
        for row in by_ella(case, setting, seed):
            yield {"seed": seed} | row
    for name, recipe in OTHERS.items():
        if setting.wants(name):
            for row in by_other(case, setting.amount, recipe()):
                yield {"method": name} | row


def by_ella(case: Case, setting: Setting, seed: int) -> Iterator[Row]:
    """ELLA stopped early by validation images or by augmented training images, and not stopped."""
    amount = setting.amount
    stops: dict[str, lw.EarlyStopping | None] = {VALIDATED: watched(case.task.held_out, amount)}
    for name, strength in AUGMENTED.items():
        stops[name] = replace(stops[VALIDATED], data=None, augment=augmentation(strength))  # type: ignore[arg-type]
    stops[ALL] = None
    for name, stopping in stops.items():
        if not setting.wants(name):
            continue
        posterior, row = ella(case, amount, seed, stopping=stopping)
        first = {"method": name, "prior": "paper", "precision": case.precision}
        yield first | row | scores(Drawn(posterior, amount.samples), case)
        if name in AUGMENTED:
            continue
        for kept, residual in ({"": False, ", residual": True} if name == ALL else {"": False}).items():
            start = replace(posterior, residual=residual)
            priors = tuned(start, case, amount)
            if residual:
                priors = {"paper": lambda start=start: start} | priors
            for prior, way in priors.items():
                yield {"method": name + kept, "prior": prior} | row | under(way, case, amount)


def by_other(case: Case, amount: Amount, recipe: lw.Laplace) -> Iterator[Row]:
    """One of the methods ELLA is compared with, under the paper's prior and with its own tuned."""
    reset_peak()
    train = case.train(amount.images)
    (fitted, failure), seconds = timed(lambda: attempt(lambda: recipe.fit(case.task.model, train)))
    row: Row = {"images": len(train[1]), "fit_seconds": seconds, "fit_gib": peak_gib(), "failure": failure}
    if fitted is None:
        yield {"prior": ""} | row
        return
    priors = {"paper": lambda: at_precision(fitted, case.precision)} | tuned(fitted, case, amount)
    for prior, way in priors.items():
        yield {"prior": prior} | row | under(way, case, amount)


def tuned(posterior: Posterior, case: Case, amount: Amount) -> dict[str, Callable[[], Posterior]]:
    """The ways to tune a prior."""
    ways: dict[str, Any] = {
        "evidence": lw.EvidenceGradient(),
        "validation": lw.Validation(case.task.held_out, link="mc"),
    }
    return {name: partial(lw.tune, posterior, way) for name, way in ways.items()}


def under(way: Callable[[], Posterior], case: Case, amount: Amount) -> Row:
    """The prior precision a way of tuning finds, its seconds, and the scores."""
    (posterior, failure), seconds = timed(lambda: attempt(way))
    row: Row = {"tune_seconds": seconds, "failure": failure}
    if posterior is None:
        return row
    row["precision"] = float(posterior.prior_precisions[0])
    if isinstance(posterior, NystromPosterior):
        row["log_marginal"] = float(posterior.log_marginal())
    found, failure = attempt(lambda: scores(Drawn(posterior, amount.samples), case))
    return row | {"failure": failure} | (found or {})
