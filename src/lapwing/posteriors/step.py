"""A step of tuning, as a posterior remembers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lapwing.predictive import Link


@final
@dataclass(frozen=True)
class Step:
    """One step of tuning.

    Args:
        log_marginal: Log evidence, nats; ``None`` where it was not measured.
        prior_precision: Precision of each group.
        noise_precision: Noise precision of a Gaussian likelihood, one number or one an output; ``None`` for others.
        effective_dimension: Directions the data determined at these values; ``None`` where it was not measured.
        validation_nll: Negative log predictive density of a held-out example, or of a mixture of training inputs,
            nats, where that was measured.
        validation_error: Standard error of that over the examples, where it was measured.
        validation_examples: Held-out examples, or mixtures, by which it was measured.
        effective_dimension_error: Standard error of the effective dimension, where it came from draws.
        mode_norms: ``|w*_g|²`` of each group at the mode of the tangent model, every weight times its precision
            relative to the group's, where the evidence was taken there.
        mode_nll: Negative log likelihood of the training data there, by the fitted likelihood, nats.
        link: The link by which the NLL was measured, where that takes one.
        temperature: The temperature of the logits there.
        bound: Lower bound on the log evidence, nats, where that was maximised; up to a constant that all steps share
            where the evidence is not exact.
    """

    log_marginal: float | None
    prior_precision: tuple[float, ...]
    noise_precision: float | tuple[float, ...] | None
    effective_dimension: float | None
    validation_nll: float | None = None
    effective_dimension_error: float | None = None
    mode_norms: tuple[float, ...] | None = None
    mode_nll: float | None = None
    bound: float | None = None
    link: Link | None = None
    temperature: float | None = None
    validation_error: float | None = None
    validation_examples: int | None = None
