"""Which changes of the noise a posterior can follow."""

from __future__ import annotations

from dataclasses import replace

import torch

from lapwing.ground.errors import UnsupportedError
from lapwing.likelihoods import Gaussian, Likelihood


def check_noise(likelihood: Likelihood, fitted: Likelihood) -> None:
    """Refuses a likelihood that the curvature was not computed with, up to one factor of its noise precision.

    Raises:
        UnsupportedError: If it is another.
    """
    same = likelihood == fitted
    if isinstance(likelihood, Gaussian) and isinstance(fitted, Gaussian):
        now, then = (torch.tensor(it.precision, dtype=torch.float64) for it in (likelihood, fitted))
        ratios = torch.outer(now.view(-1), 1 / then.view(-1))
        factors = ratios.diagonal() if ratios.shape[0] == ratios.shape[1] else ratios
        same = replace(likelihood, precision=fitted.precision) == fitted
        same = same and bool(factors.max() <= (1 + 1e-9) * factors.min())
    if not same:
        raise UnsupportedError(
            "the fitted likelihood, its noise precision changed by one factor for all outputs",
            f"{likelihood} for a posterior fitted with {fitted}",
            "fitting again with this likelihood",
        )


def check_noise_free(fixed: bool) -> None:
    """Refuses to change the noise where the curvature would not follow.

    Args:
        fixed: ``Posterior.noise_fixed``.

    Raises:
        UnsupportedError: If it would not.
    """
    if fixed:
        raise UnsupportedError(
            "a curvature in proportion to the noise precision, to change the noise",
            "an empirical Fisher matrix, which grows with its square",
            "curvature=GGN(), tuning with noise=False, or fitting again with the other noise",
        )
