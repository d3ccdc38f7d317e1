"""Scores of predictions, computed in float64.

Classification scores take probabilities ``[*n, c]`` (examples, tokens or pixels, class axis last) and integer
labels ``[*n]``; elements labelled -100 are ignored. A multi-label problem with probabilities ``p [n, c]`` is
one of n c two-class elements: pass ``torch.stack([1 - p, p], -1)`` and its 0/1 targets. Regression scores
take tensors of one shape and average over every scalar in them. Distances to a reference (``symmetric_kl`` of
probabilities, ``gaussian_symmetric_kl`` and ``gaussian_wasserstein`` of output moments) are returned for each
example; ``joint_log_likelihood`` takes draws of the outputs.

All but the CRPS are written out, a few lines each, because ``torchmetrics`` answers another question where it
matters: it works in float32, sends probabilities that exceed 1 by rounding through a softmax and scores
outside [0, 1] through a sigmoid, and gives confidences of exactly 1 a bin of their own. The tests compare
with it where the two agree.
"""

from __future__ import annotations

from lapwing.metrics.calibration import (
    EqualMass,
    Reliability,
    adaptive_ece,
    debiased_ece,
    ece,
    ece_floor,
    equal_mass,
    reliability,
)
from lapwing.metrics.classification import (
    RejectionCurve,
    accuracy,
    aupr,
    auroc,
    auroc_placements,
    brier,
    fpr95,
    losses,
    nll,
    rejection_curve,
    symmetric_kl,
)
from lapwing.metrics.joint import DyadicValues, dyadic_members, dyadic_values, joint_log_likelihood
from lapwing.metrics.regression import (
    crps,
    gaussian_nll,
    gaussian_symmetric_kl,
    gaussian_wasserstein,
    interval_score,
    interval_width,
    picp,
    rmse,
)

__all__ = [
    "DyadicValues",
    "EqualMass",
    "RejectionCurve",
    "Reliability",
    "accuracy",
    "adaptive_ece",
    "aupr",
    "auroc",
    "auroc_placements",
    "brier",
    "crps",
    "debiased_ece",
    "dyadic_members",
    "dyadic_values",
    "ece",
    "ece_floor",
    "equal_mass",
    "fpr95",
    "gaussian_nll",
    "gaussian_symmetric_kl",
    "gaussian_wasserstein",
    "interval_score",
    "interval_width",
    "joint_log_likelihood",
    "losses",
    "nll",
    "picp",
    "rejection_curve",
    "reliability",
    "rmse",
    "symmetric_kl",
]
