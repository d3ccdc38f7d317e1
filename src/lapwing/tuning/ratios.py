"""The log determinants behind an evidence curve, by whatever holds the covariance."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from lapwing.ground import probes
from lapwing.ground.errors import ConvergenceWarning, UnsupportedError, check_count, warn
from lapwing.ground.results import Estimate
from lapwing.linalg.lanczos import Krylov, lanczos
from lapwing.posteriors import ExactPosterior, MatrixFreePosterior, Posterior, SampledPosterior
from lapwing.priors import Prior

STEPS, BIAS = 500, 0.1
"""Lanczos steps at most, and the error of their quadratures that is allowed, in standard errors."""


def log_det_ratios(
    posterior: Posterior, path: Float[Tensor, "m g"], *, samples: int, seed: int, progress: bool
) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """``log det(I + s A⁻¹ G)`` along a path of weaker and weaker priors, with standard errors.

    Args:
        posterior: The posterior, whose curvature and noise they are.
        path: Precisions of all groups.
        samples: Probes, for a ``MatrixFree`` posterior.
        seed: Of the probes.
        progress: Whether to show a progress bar.

    Raises:
        UnsupportedError: If the posterior has no evidence.
    """
    if isinstance(posterior, ExactPosterior):
        complexity = posterior.evidence.complexity
        exact = torch.stack([complexity.log_det_ratio(row, posterior.scale) for row in path])
        return exact, torch.zeros_like(exact)
    priors = [posterior.prior.with_precisions(row.cpu()) for row in path]
    if isinstance(posterior, SampledPosterior):
        layout, like = posterior.network.uncertain, posterior.network.like
        found = posterior.log_det_ratios([prior.operator(layout, like) for prior in priors], progress=progress)
    elif isinstance(posterior, MatrixFreePosterior):
        factors = path[0] / path
        if bool((factors == factors[:, :1]).all()):
            return by_probes(posterior, priors[0], factors[:, 0], samples, seed)
        found = one_by_one(posterior, priors, samples, seed, progress)
    else:
        raise UnsupportedError("a posterior that has an evidence", f"{posterior!r}", "a structure of lapwing")
    pairs = [(estimate.value, estimate.stderr) for estimate in found]
    value, error = torch.tensor(pairs, dtype=torch.float64, device=path.device).unbind(1)
    return value, error


def by_probes(
    posterior: MatrixFreePosterior, strongest: Prior, factors: Float[Tensor, " m"], samples: int, seed: int
) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """The ratios for a prior and weaker multiples of it, all from one Lanczos recurrence a probe.

        log det(I + s f A⁻¹ G) = tr log(1 + s f A^-½ G A^-½) ≈ mean of |z|² Σ τ² log(1 + s f θ)

    As in ``log_determinant``, the recurrences go on until their last third moved no mean by more than a tenth of its
    standard error; where ``STEPS`` do not suffice for that, the standard errors grow by what it moved.

    Args:
        posterior: The posterior.
        strongest: The prior with precision A.
        factors: f, how many times weaker each is.
        samples: Probes, of random signs.
        seed: Of the probes.

    Warns:
        ConvergenceWarning: If ``STEPS`` did not suffice.

    Cost:
        At most ``STEPS`` products with ``samples`` columns, however many precisions there are.
    """
    check_count("samples", samples, 2)
    network, scale = posterior.network, posterior.noise_scale
    problem = posterior.problem.with_prior(strongest.operator(network.uncertain, network.like), scale)
    like, generator = network.like.new_empty(0, dtype=torch.float64), torch.Generator().manual_seed(seed)
    start = probes.rademacher([problem.size, samples], like=like, generator=generator)
    rounding = torch.finfo(network.like.dtype).eps * problem.size

    def values(krylov: Krylov) -> Float[Tensor, "m k"]:
        return torch.stack([krylov.quadrature(lambda x, f=f: (scale * f * x.clamp_min(0)).log1p()) for f in factors])

    def spread(krylov: Krylov) -> tuple[Tensor, Tensor, Tensor]:
        now = values(krylov)
        moved = (now - values(krylov.earlier)).mean(1).abs()
        return now.mean(1), now.std(1) / samples**0.5, moved

    def converged(krylov: Krylov) -> bool:
        _, error, moved = spread(krylov)
        return bool(krylov.exhausted.all()) or (krylov.steps > 1 and bool((moved <= BIAS * error + rounding).all()))

    krylov = lanczos(problem.in_prior_units(), start, STEPS, reorthogonalise="none", until=converged)
    mean, error, moved = spread(krylov)
    if not converged(krylov):
        warn(
            f"log determinants still moved by up to {float(moved.max()):.2g} in the last third of {krylov.steps} "
            "Lanczos steps, those of the weakest priors most. Try precisions that are not so small, or KFAC()",
            ConvergenceWarning,
        )
        error = torch.hypot(error, moved)
    return mean, error.clamp_min(rounding)


def one_by_one(
    posterior: MatrixFreePosterior, priors: list[Prior], samples: int, seed: int, progress: bool
) -> list[Estimate]:
    """The ratios for any priors, each a stochastic log determinant with the same probes.

    Args:
        posterior: The posterior.
        priors: The priors.
        samples: Probes.
        seed: Of the probes.
        progress: Whether to show a progress bar.
    """
    found: list[Estimate] = []
    for prior in tqdm(priors, desc="evidence", disable=not progress, unit="precision", leave=False):
        moved = posterior.with_choices(prior, posterior.likelihood)
        found.append(moved.log_det_ratio(samples, generator=torch.Generator().manual_seed(seed)))
    return found
