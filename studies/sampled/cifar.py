"""ResNets on CIFAR-10 that others trained: all their weights by EM with a g-prior, from draws alone.

    python -m studies.sampled cifar --data DIR --json FILE [--train 2000] [--only ella_resnet20 resnet20 resnet32]

``--only`` also takes names of parts, ``ELBO EM network KFAC``, so that a long study can be run in several short ones,
whose reports ``--join FILE FILE ...`` puts together.

The curvature is that of the first training images. The evidence lower bound chooses the prior, and so does EM; then the
same draws, solved again with each prior, choose its scale by 300 validation images. Plain network, temperature scaling
(both fitted on the validation images) and KFAC stand beside. Everything is scored on the other 717 test images:
marginal and joint log-likelihood with the same number of functions for every method, and corrupted images.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import generator
from benchmarks.networks import weight_count
from benchmarks.report import Row, attempt, timed, tried
from benchmarks.tasks import BATCH, RESNETS, Linearised, Task, corruption_sweep, marginal, probabilities
from lapwing import metrics
from lapwing.comparison.bench import Measured, measured
from lapwing.evaluation.baselines import Map
from lapwing.evaluation.corruptions.corrupt import CORRUPTIONS
from lapwing.linear.tangent import Target
from lapwing.posteriors import Posterior, SampledPosterior, Step

logger = logging.getLogger(__name__)

TARGETS: tuple[Target, ...] = get_args(Target)[::-1]
WAYS = ("ELBO", "EM")
PARTS = (*WAYS, "network", "KFAC")
ANCHORS = (1, 2, 3, 4, 5)
COLUMNS = (
    "nll", "nll_over_plain", "ece", "accuracy", "brier", *(f"joint_{k}" for k in ANCHORS),
    *(f"severity_{k}" for k in range(6)), "precision", "effective_dimension", "steps", "seconds", "peak_mib",
)  # fmt: skip


@dataclass(frozen=True)
class Amount:
    """How much is done.

    Args:
        tuning: Draws behind EM.
        draws: Draws behind predictions, and functions behind joint log-likelihoods.
        rank: Of the preconditioner.
        start: Precision of the g-prior that tuning starts from.
        rtol: Relative residual of the draws that EM and predictions are made of.
        steps: Most steps of EM.
        factors: Scales of the prior tried on the validation images, relative to EM's, largest first.
        corruptions: Which.
        corrupted: Test images that are corrupted, evenly spread.
        shuffles: Of the joint log-likelihoods.
    """

    tuning: int = 4
    draws: int = 64
    rank: int = 600
    start: float = 1000.0
    rtol: float = 1e-2
    steps: int = 15
    factors: tuple[float, ...] = (4.0, 2.0, 1.0, 0.5, 0.25)
    corruptions: tuple[str, ...] = CORRUPTIONS
    corrupted: int = 100
    shuffles: int = 10


QUICK = Amount(2, 3, 2, 1000.0, 0.2, 2, (2.0, 1.0), ("contrast",), 2, 2)


def rows(setting: Setting) -> Iterator[Row]:
    """Every method on every network asked for; EM comes first."""
    targets = setting.among(TARGETS, TARGETS[:1])
    for name in setting.among(RESNETS, RESNETS[:1]):
        task = Task.read(name, setting)
        head: Row = {"network": task.name, "images": len(task.train[1])}
        head |= {"weights": weight_count(task.model)}
        for seed in range(1 if setting.quick else setting.seeds):
            for row in of_network(task, QUICK if setting.quick else Amount(), seed, targets, setting):
                yield head | {"seed": seed} | row


def of_network(task: Task, amount: Amount, seed: int, targets: tuple[Target, ...], setting: Setting) -> Iterator[Row]:
    """The rows of one network."""
    parts = setting.among(PARTS)
    for target in targets:
        for name in (way for way in WAYS if way in parts):
            tuned, row = by_evidence(name, task, amount, seed, target, setting.kept)
            yield {"method": name, "tuned_by": "evidence", "target": target} | row
            if tuned is not None:
                found = by_draws(task, tuned, amount, seed, search=name == WAYS[0])
                yield from ({"target": target, "evidence": name} | row for row in found)
    if "network" in parts:
        yield from by_network(task, amount)
    if "KFAC" in parts:
        yield from by_kfac(task, amount)


def by_network(task: Task, amount: Amount) -> Iterator[Row]:
    """The network as it is, and with the temperature that suits the validation images best."""
    yield {"method": "plain network", "tuned_by": ""} | scored(Map(task.model), task, amount)
    temperature, failure = attempt(lambda: Map(task.model).calibrated(task.held_out))
    row = {"failure": failure} if temperature is None else scored(temperature, task, amount)
    yield {"method": "temperature scaling", "tuned_by": "validation"} | row


def solver(amount: Amount) -> lw.CG:
    """What modes and draws are solved with; the preconditioner is made once, for all priors."""
    return lw.CG(rtol=amount.rtol, preconditioner=lw.TopRows(amount.rank))


def by_evidence(
    name: str, task: Task, amount: Amount, seed: int, target: Target, kept: Path | None
) -> tuple[SampledPosterior | None, Row]:
    """Fit and tune with few draws: the trace and what it cost; an EM that was interrupted goes on, as its row says."""
    file = None
    if kept is not None and name == "EM":
        kept.mkdir(parents=True, exist_ok=True)
        file = kept / f"em-{task.name}-{target}-{len(task.train[1])}-{seed}.safetensors"
    resumed = file is not None and file.exists()
    recipe = lw.Laplace(
        lw.Categorical(), prior=lw.GPrior(amount.start), structure=lw.Sampled(amount.tuning, solver(amount), seed=seed)
    )
    method: Any = lw.ELBO(samples=amount.tuning, target=target, seed=seed)
    if name == "EM":
        method = lw.EM(samples=amount.tuning, steps=amount.steps, target=target, checkpoint=file, seed=seed)

    def work() -> Any:
        return lw.tune(recipe.fit(task.model, task.train).with_link("probit"), method, progress=True)

    found = measured(lambda: attempt(work))
    tuned, failure = found.value
    row: Row = cost(found) | {"failure": failure, "samples": amount.tuning, "resumed": resumed}
    if tuned is None:
        return None, row
    trace = [told(step) for step in tuned.trace]
    row |= {"precision": float(tuned.prior_precisions[0]), "steps": len(trace), "trace": trace}
    return tuned, row | {"effective_dimension": trace[-1]["effective_dimension"]}


def told(step: Step) -> Row:
    """A step of EM: a, γ and its standard error, |w*|² in the units of the prior, the misfit of the tangent model."""
    row: Row = {"precision": step.prior_precision[0], "effective_dimension": step.effective_dimension}
    row |= {"effective_dimension_error": step.effective_dimension_error, "mode_nll": step.mode_nll}
    return row | {"mode_norms": step.mode_norms}


def by_draws(task: Task, tuned: SampledPosterior, amount: Amount, seed: int, *, search: bool) -> Iterator[Row]:
    """Fresh draws under the evidence's prior, and under the one of the scales that suits the validation images best."""

    def solved() -> SampledPosterior:
        drawn = tuned.resampled(amount.draws, generator=generator(seed + 1000))
        assert drawn.draws is not None  # they are solved for when they are asked for
        return drawn

    found = measured(solved)
    drawn, head = found.value, {"samples": amount.draws}
    yield from linked(drawn, "evidence", task, amount, head | cost(found))
    if not search:
        return
    searched = measured(lambda: by_validation(drawn, task, amount))
    best, losses = searched.value
    yield from linked(best, "validation", task, amount, head | cost(searched) | {"validation": losses})


def cost(found: Measured[Any]) -> Row:
    """Seconds, and the memory beyond what was there."""
    return {"seconds": found.seconds, "peak_mib": found.peak_mib}


def linked(posterior: SampledPosterior, tuned_by: str, task: Task, amount: Amount, cost: Row) -> Iterator[Row]:
    """Rows of both links: variances through the probit, and the draws themselves."""
    told = cost | {"tuned_by": tuned_by, "precision": float(posterior.prior_precisions[0])}
    yield {"method": "sampled, probit"} | told | scored(posterior, task, amount)
    probs = probabilities(posterior, task.test[0], link="mc", samples=amount.draws)
    yield {"method": "sampled, mc"} | told | marginal(probs, task)


def by_validation(drawn: SampledPosterior, task: Task, amount: Amount) -> tuple[SampledPosterior, list[Row]]:
    """The scale of the prior with the smallest validation NLL: on a grid, then half a stride beside the best of it.

    Every solve starts from the draws of the last scale.
    """
    base, losses = drawn.prior_precisions, list[Row]()

    def measured(start: SampledPosterior, factor: float) -> tuple[float, float, SampledPosterior]:
        moved = start.with_choices(start.prior.with_precisions((factor * base).cpu()), start.likelihood)
        loss = metrics.nll(probabilities(moved, task.held_out[0]), task.held_out[1])
        losses.append({"factor": factor, "nll": loss})
        logger.info("prior scale %.3g: validation NLL %.4f", factor, loss)
        return loss, factor, moved

    at, best = drawn, (math.inf, 1.0, drawn)
    for factor in amount.factors:
        found = measured(at, factor)
        at, best = found[2], min(best, found, key=lambda one: one[0])
    half = math.sqrt(amount.factors[0] / amount.factors[1])
    beside = [measured(best[2], best[1] * factor) for factor in (half, 1 / half)]
    return min(best, *beside, key=lambda one: one[0])[2], losses


def by_kfac(task: Task, amount: Amount) -> Iterator[Row]:
    """KFAC with one precision for all weights, tuned in three ways, the longest last."""
    recipe = lw.Laplace(lw.Categorical(), structure=lw.KFAC())
    fitted, fitting = timed(lambda: recipe.fit(task.model, task.train))
    ways: dict[str, Any] = {
        "evidence at the weights": lw.EvidenceGradient(),
        "validation": lw.Validation(task.held_out),
        "lower bound": lw.ELBO(),
    }
    for name, way in ways.items():
        tuned, cost = tried(partial(lw.tune, fitted, way))
        row: Row = {"method": "KFAC", "tuned_by": name} | cost | {"seconds": fitting + cost["seconds"]}
        if tuned is not None:
            row |= {"precision": float(tuned.prior_precisions[0])} | scored(tuned, task, amount)
        yield row


def scored(predictor: Any, task: Task, amount: Amount) -> Row:
    """Scores on the test images, of each alone and of several together, clean and corrupted."""
    row = marginal(probabilities(predictor, task.test[0]), task)
    return row | joint(predictor, task, amount) | corrupted(predictor, task, amount)


def joint(predictor: Any, task: Task, amount: Amount) -> Row:
    """Joint log-likelihood of the labels of κ images, nats, the same sets of images for every method."""
    outputs, row = functions(predictor, task.test[0], amount.draws), Row()
    for anchors in ANCHORS:
        options = {"anchors": anchors, "shuffles": amount.shuffles, "generator": generator()}
        found = metrics.joint_log_likelihood(lw.Categorical(), outputs, task.test[1], **options)
        row |= {f"joint_{anchors}": found.value, f"joint_{anchors}_error": found.stderr}
    return row


def functions(predictor: Any, x: Tensor, samples: int) -> Tensor:
    """Logits ``[s, n, c]`` of functions drawn jointly over all images; ``[n, c]`` of a network without a posterior."""
    if not isinstance(predictor, Posterior):
        return torch.cat([predictor.outputs(part) for part in x.split(BATCH)])
    linear = Linearised.of(predictor, samples, generator(1))
    return torch.cat([linear.outputs(part) for part in x.split(BATCH)], dim=1)


def corrupted(predictor: Any, task: Task, amount: Amount) -> Row:
    """NLL by severity, the mean over the corruptions; severity 0 are the same images as they were."""
    sweep = corruption_sweep(predictor, task, amount.corruptions, amount.corrupted)
    row: Row = {f"severity_{k}": v for k, v in sweep.by_severity().items()}
    return row | {"corruptions": {name: [s["nll"] for s in scores] for name, scores in sweep.corrupted.items()}}
