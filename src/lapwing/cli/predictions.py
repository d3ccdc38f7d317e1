"""What a posterior predicts, as arrays by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapwing.evaluation.evaluate import Predictor
from lapwing.ground.data.sources import inputs_of

ASKED = ("labels", "probs", "mean", "std")
"""What is told of a prediction that has it."""


def predicted(predictor: Predictor, source: Any, level: float, *, unpack: Any = None) -> dict[str, np.ndarray]:
    """Predictions of all inputs, one example a row.

    Args:
        predictor: The posterior.
        source: Inputs, or inputs and targets, or a loader of either.
        level: Probability of the intervals, where targets have some.
        unpack: Splits one element of a loader into inputs and targets.
    """
    parts = [_columns(predictor.predict(inputs), level) for inputs in inputs_of(source, unpack)]
    return {name: torch.cat([part[name] for part in parts]).numpy(force=True) for name in parts[0]}


def _columns(prediction: Any, level: float) -> dict[str, Tensor]:
    """What is told of a batch: what the distribution has, and how little is known of each example."""
    found = {name: getattr(prediction, name) for name in ASKED if hasattr(prediction, name)}
    if hasattr(prediction, "interval"):
        low, high = prediction.interval(level)
        found |= {"low": low, "high": high}
    found["epistemic"] = prediction.epistemic
    knowledge = prediction.knowledge
    if knowledge is not None and knowledge.familiar is not None:
        found["unfamiliar"] = prediction.unfamiliar
    return {name: value.detach() for name, value in found.items()}
