"""Scores of a predictor of images: of each alone, of several together, and of images that get worse."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import lapwing as lw
from lapwing.evaluation import metrics
from lapwing.posteriors import Posterior
from studies.predictors import BATCH, Batched, Linearised, probabilities
from studies.report import Row
from studies.sampled.resnets import Amount, Task
from studies.seeds import generator

ANCHORS = (1, 2, 3, 4, 5)


def scored(predictor: Any, task: Task, amount: Amount) -> Row:
    """Scores on the test images, of each alone and of several together, clean and corrupted."""
    row = marginal(probabilities(predictor, task.test[0]), task)
    return row | joint(predictor, task, amount) | corrupted(predictor, task, amount)


def marginal(probs: Tensor, task: Task) -> Row:
    """Scores of the probabilities of each test image."""
    row: Row = {"test_images": len(probs)}
    for name in ("nll", "ece", "accuracy", "brier"):
        row[name] = float(getattr(metrics, name)(probs, task.test[1]))
    return row | {"nll_over_plain": row["nll"] / task.plain}


def joint(predictor: Any, task: Task, amount: Amount) -> Row:
    """Joint log-likelihood of the labels of κ images, nats, the same sets of images for every method."""
    outputs = functions(predictor, task.test[0], amount.draws)
    row: Row = {}
    for anchors in ANCHORS:
        found = metrics.joint_log_likelihood(
            lw.Categorical(), outputs, task.test[1], anchors=anchors, shuffles=amount.shuffles, generator=generator()
        )
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
    chosen = torch.linspace(0, len(task.pixels) - 1, amount.corrupted).round().long()
    pixels, labels = task.pixels[chosen], task.test[1][chosen]
    sweep = lw.corruption_sweep(
        Batched(predictor), pixels, labels, names=amount.corruptions, transform=task.transform, generator=generator(2)
    )
    row: Row = {f"severity_{k}": v for k, v in sweep.by_severity().items()}
    return row | {"corruptions": {name: [s["nll"] for s in scores] for name, scores in sweep.corrupted.items()}}
