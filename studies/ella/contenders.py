"""The predictors that are compared where images change: plain network, temperature scaling, ELLA, last layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import lapwing as lw
from lapwing.evaluation.baselines import Map
from studies.ella.cifar import OTHERS
from studies.ella.scored import Drawn, ella, watched
from studies.ella.setting import Case, Setting
from studies.report import attempt

CHOICE = ("plain", "temperature scaling", "ELLA", "last layer")


def contenders(case: Case, setting: Setting) -> Iterator[tuple[str, int | None, Any, str]]:
    """Name, seed of the landmarks, predictor and failure of each that was asked for, or else of ``CHOICE``.

    ELLA stops early by the validation images under the paper's prior; the others are tuned by these images.
    """
    asked = setting.only or CHOICE
    amount = setting.amount
    ways: dict[str, Callable[[], Any]] = {
        "plain": lambda: Map(case.task.model),
        "temperature scaling": lambda: Map(case.task.model).calibrated(case.task.held_out),
    }
    for name, recipe in OTHERS.items():
        ways[name] = lambda recipe=recipe: Drawn(
            lw.tune(
                recipe().fit(case.task.model, case.train(amount.images)), lw.Validation(case.task.held_out, link="mc")
            ),
            amount.samples,
        )
    for name, way in ways.items():
        if name in asked:
            yield name, None, *attempt(way)
    for seed in setting.repeats if "ELLA" in asked else ():
        stopping = watched(case.task.held_out, amount)
        found, failure = attempt(lambda seed=seed, by=stopping: ella(case, amount, seed, stopping=by)[0])
        yield "ELLA", seed, None if found is None else Drawn(found, amount.samples), failure
