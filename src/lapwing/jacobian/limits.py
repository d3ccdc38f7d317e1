"""What passes over data and inputs may take of memory and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Limits:
    """Limits of memory and time, beyond which work is cut into pieces or done another way.

    Args:
        training: Bytes the layer factors of one chunk of training data may take (128 MiB).
        prediction: Bytes those of one chunk of inputs may take (32 MiB): a prediction fits beside the user's own work.
        joint_outputs: Outputs beyond which their covariance is made only when it is asked for: at each position it
            takes their square.
        jacobian: Bytes the Jacobian of one example may take, layer by layer, for covariances of its outputs (2 GiB).
        multiplications: Those that exact covariances of the outputs of one example may take: about a minute of a core.
        draws: Draws of the weights that outputs are known by where it would take more of either.
        few_draws: Those in their place where making so many takes more multiplications than that too.
        draw_bytes: Bytes that draws made at a time may take, and what they do to outputs (256 MiB).
        moved_bytes: Bytes that draws of all outputs of one call may take (8 GiB).
        factor_bytes: Bytes up to which these are kept where a link takes variances alone, for what is asked of the
            prediction later; beyond, their sums of squares are (1 GiB).
    """

    training: int = 2**27
    prediction: int = 2**25
    joint_outputs: int = 256
    jacobian: int = 2**31
    multiplications: float = 1.2e12
    draws: int = 64
    few_draws: int = 16
    draw_bytes: int = 2**28
    moved_bytes: int = 2**33
    factor_bytes: int = 2**30


LIMITS = Limits()
"""The usual ones."""
