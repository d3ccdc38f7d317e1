"""Priors that take their scale from the curvature."""

from __future__ import annotations

from dataclasses import replace

from lapwing.curvature.diagonal import DiagonalSum
from lapwing.curvature.ggn import GGN
from lapwing.curvature.noise import Noise
from lapwing.curvature.sums import sweep
from lapwing.priors import GPrior
from lapwing.structures.task import Task


def scaled(task: Task) -> Task:
    """The task with a prior that knows its scale: diag(M), exact from layer factors or from noise.

    A prior that knows it already, or has none, stays as it is.

    Cost:
        A sweep over the data, with a backward pass for each output, or each sample of the prior.
    """
    prior = task.prior
    if not isinstance(prior, GPrior) or prior.scale is not None:
        return task
    total = DiagonalSum(task.model.network)
    curvature = GGN() if prior.samples is None else Noise(prior.samples)
    sweep(task.model, curvature, total, generator=task.generator)
    return replace(task, prior=prior.scaled_by(total.result().operator.diagonal(), task.model.network.uncertain))
