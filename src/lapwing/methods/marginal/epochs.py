"""Epochs of training on the marginal likelihood: what each was, how many there are, and whether they were enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import final

from lapwing.ground.errors import ConfigError, ConvergenceWarning, check_count, warn
from lapwing.tuning.hyperparameters import BOUNDS, at_end

STEPS = 2000
"""Steps of the optimiser, where nobody says how many."""

EPOCHS = 50
"""Fewest epochs, where nobody says how many."""

FALL = 0.02
"""Nats an example that the likelihood may still gain from one quarter of the settling to the next."""

CLEAR = 2.0
"""Standard deviations, over the epochs of a quarter, beyond which that is no scatter; a steady fall has 3.5."""

LOOKED_AT = 5
"""Fewest epochs in such a quarter for a judgement."""


@final
@dataclass(frozen=True)
class Epoch:
    """One epoch of training: the mean over its batches of the terms of the negative log marginal likelihood.

    In nats, all constants included (Brack 2023, equation 3.10); and the hyper-parameters after it.

    Args:
        nll: Negative log likelihood of all N examples.
        log_prior: Log prior density of the weights; NaN during the warm-up.
        half_log_det: ``½ log det Λ``; NaN during the warm-up, and without a ``log_det``.
        total: ``-log p(y) = nll - log p(θ) + ½ log det Λ - d/2 log 2π``; NaN where one of its terms is.
        prior_precision: α, precision of each group of weights.
        noise_precision: ρ, noise precision of a Gaussian likelihood, one number or one an output; ``None`` for others.
        warm_up: Whether it belonged to the warm-up.
    """

    nll: float
    log_prior: float
    half_log_det: float
    total: float
    prior_precision: tuple[float, ...]
    noise_precision: float | tuple[float, ...] | None
    warm_up: bool


def epochs_of_phases(
    epochs: int | None, warm_up: int | None, settle: int | None, *, steps: int, log_det: bool = True
) -> tuple[int, int, int]:
    """All epochs, those on the likelihood alone, and those after them without the log-determinant for the weights.

    Args:
        epochs: What was asked for, or ``None`` for about 2000 steps and at least 50 epochs.
        warm_up: Or ``None`` for a twentieth, and at least one.
        settle: Or ``None`` for half of what is left.
        steps: Steps in an epoch.
        log_det: Whether a log-determinant is in the loss of the weights in the end.

    Raises:
        ConfigError: If a part after one of these would have no epoch.

    Example:
        >>> epochs_of_phases(None, None, None, steps=1)
        (2000, 100, 950)
    """
    if epochs is None:
        epochs = max(EPOCHS, math.ceil(STEPS / steps))
    check_count("epochs", epochs, usual=200)
    warm_up = min(max(1, epochs // 20), epochs - 1) if warm_up is None else warm_up
    if not 0 <= warm_up < epochs:
        raise ConfigError(
            "at least one epoch after the warm-up", f"epochs={epochs}, warm_up={warm_up}", "epochs=200, warm_up=10"
        )
    settle = (epochs - warm_up) // 2 if settle is None else settle
    if log_det and warm_up + settle >= epochs:
        raise ConfigError(
            "epochs beyond warm_up and settle, in which the log-determinant is in the loss of the weights",
            f"epochs={epochs}, warm_up={warm_up}, settle={settle}",
            "settle=None for half of them, or log_det=None for no log-determinant",
        )
    return epochs, warm_up, settle


def warn_of(history: Sequence[Epoch], examples: int) -> None:
    """Warn, in one sentence each, of a fit that was still improving and of precisions at a bound.

    The first looks at the likelihood while the network settles, where the learning rate is still high: it falls to 0.

    Args:
        history: All epochs.
        examples: N, examples in the training data.
    """
    settling = [record.nll for record in history if not record.warm_up and math.isnan(record.half_log_det)]
    quarter = len(settling) // 4
    if quarter >= LOOKED_AT:
        last = settling[-quarter:]
        fall = fmean(settling[-2 * quarter : -quarter]) - fmean(last)
        if fall > max(FALL * examples, CLEAR * stdev(last)):
            warn(
                f"the negative log likelihood was still falling, by {fall / examples:.2g} nats an example over "
                f"{quarter} epochs, when the log-determinant came in, which holds what is not fitted by then for "
                f"noise: try epochs={2 * len(history)}, or another lr",
                ConvergenceWarning,
            )
    noise = history[-1].noise_precision
    ended = [("prior", value) for value in history[-1].prior_precision]
    if noise is not None:
        ended += [("noise", value) for value in (noise if isinstance(noise, tuple) else (noise,))]
    at = [f"{name} precision {value:.3g}" for name, value in ended if at_end(value)]
    if at:
        warn(
            f"{' and '.join(at)} ended at a bound of the range from {BOUNDS[0]:.0e} to {BOUNDS[1]:.0e}, where the "
            "evidence has no maximum: try more epochs, an Isotropic() prior, noise=False, or targets that are not "
            "constant",
            ConvergenceWarning,
        )
