"""Seconds to predict: ELLA beside K tangent passes measured alone in the same run, and beside the other methods.

    python -m studies.ella seconds --data DIR --json FILE [--networks ella_resnet20] [--only ELLA KFAC ...]

A tangent pass pushes a change of the weights through the network by forward-mode differentiation. All K go through in
one batched call, ``vmap`` of ``jvp``, or one after the other. ELLA and the passes take turns on the same images; the
ratio is the median over the rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vmap  # noqa: TID251, the bare passes are what is timed

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.report import Row, attempt, timed
from benchmarks.tasks import RESNETS, Drawn, Task
from lapwing.evaluation.baselines import Map
from lapwing.posteriors import NystromPosterior
from studies.ella.cifar import OTHERS
from studies.ella.setting import Amount, amount_of, at_precision, cases, first, laplace, precision

FITTED = 100
"""Training images behind the posteriors whose predictions are timed."""

COLUMNS = ("ratio", "ratio_one_by_one", "seconds", "milliseconds_per_image", "passes_seconds", "one_by_one_seconds")


def rows(setting: Setting) -> Iterator[Row]:
    """A row for each network and method.

    Beside K = 20 forward-mode passes on the same images, in turn with them in the same run; medians.
    """
    for case in cases(setting, RESNETS[:1]):
        for name, make in predictors(case, setting).items():
            predictor, failure = attempt(make)
            row: Row = {"part": case.name, "method": name, "failure": failure}
            yield row if predictor is None else row | measured(predictor, case, amount_of(setting))


def measured(predictor: Any, case: Task, amount: Amount) -> Row:
    """Seconds of a predictor, for ELLA in turn with those of the passes."""
    x = case.test[0][: amount.timed]
    works: dict[str, Callable[[], Any]] = {"": lambda: predictor.predict(x)}
    row: Row = {"timed_images": len(x), "threads": torch.get_num_threads(), "rounds": amount.repeats}
    if isinstance(predictor, Drawn) and isinstance(predictor.posterior, NystromPosterior):
        changes = predictor.posterior.changes
        works["passes"] = lambda: passes(case.model, changes, x, together=True)
        works["one_by_one"] = lambda: passes(case.model, changes, x, together=False)
        row |= {"rank": changes.shape[1]}
    row |= taken(works, amount.repeats)
    return row | {"milliseconds_per_image": 1e3 * row["seconds"] / len(x)}


def predictors(case: Task, setting: Setting) -> dict[str, Callable[[], Any]]:
    """What is timed; the posteriors are made of few images, which does not change what predicting costs."""
    amount, train = amount_of(setting), first(case.train, FITTED if not setting.quick else 10)
    ways: dict[str, Callable[[], Any]] = {"plain": lambda: Map(case.model)}
    for name, residual in {"ELLA": False, "ELLA, residual": True}.items():
        recipe = laplace(case, lw.Nystrom(amount.rank, 4 * amount.rank, residual=residual))
        ways[name] = lambda by=recipe: Drawn(by.fit(case.model, train), amount.samples)
    for name, other in OTHERS.items():
        ways[name] = lambda by=other: Drawn(at_precision(by.fit(case.model, train), precision(case)), amount.samples)
    return {name: way for name, way in ways.items() if name in setting.among(ways)}


def taken(works: dict[str, Callable[[], Any]], rounds: int) -> Row:
    """Median seconds of each piece of work, which take turns, and the median of the ratios to the first."""
    for work in works.values():
        work()
    times = [{name: timed(work)[1] for name, work in works.items()} for _ in range(rounds)]
    row: Row = {f"{name}_seconds".lstrip("_"): statistics.median(time[name] for time in times) for name in works}
    for name, label in {"passes": "ratio", "one_by_one": "ratio_one_by_one"}.items():
        if name in works:
            ratios = [time[""] / time[name] for time in times]
            row |= {label: statistics.median(ratios), f"{label}s": ratios}
    return row


def passes(model: nn.Module, changes: Tensor, x: Tensor, *, together: bool) -> Tensor:
    """``J(x) W`` by K forward-mode passes, all in one batched call or one after the other.

    Args:
        model: In evaluation mode.
        changes: W, one column a pass, in the order of the parameters.
        x: The images.
        together: Whether in one call.
    """
    names, values = zip(*((name, value.detach()) for name, value in model.named_parameters()), strict=True)
    sizes = [value.numel() for value in values]

    def outputs(*weights: Tensor) -> Tensor:
        return functional_call(model, dict(zip(names, weights, strict=True)), (x,))

    def one(column: Tensor) -> Tensor:
        tangents = tuple(part.view_as(value) for part, value in zip(column.split(sizes), values, strict=True))
        return jvp(outputs, values, tangents)[1]

    with torch.no_grad():
        return vmap(one)(changes.mT) if together else torch.stack([one(column) for column in changes.mT.contiguous()])
