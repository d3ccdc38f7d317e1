"""Where tuning ended that is no answer: at the end of its range, or with noise that the residuals do not know."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConvergenceWarning, warn
from lapwing.posteriors import Posterior
from lapwing.tuning.ascent import BOUNDS

SEVERAL = 3.0
"""A noise so many times the residuals at the trained weights is more than the data say."""

EDGE = 1.01
"""A precision within this factor of an end of its range is at it."""


def warn_of_endings(
    posterior: Posterior, precisions: Float[Tensor, " g"], scale: Float[Tensor, ""], *, noisy: bool
) -> None:
    """Warn where chosen hyper-parameters are no answer, with the cure.

    Args:
        posterior: The posterior before.
        precisions: Prior precision chosen for each group.
        scale: Relative noise precision chosen.
        noisy: Whether the noise was chosen.

    Warns:
        ConvergenceWarning: If a precision is at an end of ``BOUNDS``, or the noise is several times the residuals at
            the trained weights.
    """
    if noisy and at_end(scale):
        warn(
            f"tuning took the noise precision to {float(scale):.0e} times what it was, the end of its range: what it "
            "judged by fits the training data exactly, or not at all. Try training the network to convergence, or "
            'EvidenceGradient(noise="residuals"), which takes the noise from the network\'s own residuals',
            ConvergenceWarning,
        )
        return
    ends = [value for value in precisions.tolist() if at_end(torch.tensor(value))]
    if ends:
        meaning = "no uncertainty of those weights" if ends[0] > 1 else "no prior at all"
        warn(
            f"tuning took {len(ends)} of {len(precisions)} prior precisions to {ends[0]:.0e}, an end of its range: it "
            f"asks for {meaning}, which is no answer. Try Isotropic() in place of a prior of several precisions, "
            "another structure, or Validation(data)",
            ConvergenceWarning,
        )
    totals = posterior.totals
    if not (noisy and totals.misfit > 0):
        return
    times = float(totals.observations / (scale * totals.misfit)) ** 0.5
    if times > SEVERAL:
        warn(
            f"the tuned noise is {times:.1f} times the residuals at the trained weights: this curvature counts more "
            f"directions as determined than {totals.observations:g} observations can determine. Try "
            'EvidenceGradient(noise="residuals"), or structure=Full() or weights=LastLayer()',
            ConvergenceWarning,
        )


def at_end(value: Tensor) -> bool:
    """Whether a precision is at an end of the range considered.

    Example:
        >>> at_end(torch.tensor(1e12)), at_end(torch.tensor(3.0))
        (True, False)
    """
    return not EDGE * BOUNDS[0] < float(value) < BOUNDS[1] / EDGE
