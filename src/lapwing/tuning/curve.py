"""The evidence as a curve over the prior precision: for every way to hold the covariance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from lapwing.ground.errors import (
    ConvergenceWarning,
    ShapeError,
    UnsupportedError,
    check_count,
    check_kind,
    check_option,
    warn,
)
from lapwing.linalg import Diagonal
from lapwing.linalg.functions import traces
from lapwing.linear.evidence import LogEvidence
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import Solver
from lapwing.linear.tangent import Tangent, Target
from lapwing.posteriors import ExactPosterior, MatrixFreePosterior, Posterior, SampledPosterior
from lapwing.priors.base import checked
from lapwing.tuning.choices import At, at_mode
from lapwing.tuning.search import vertex

STEPS = 500
"""Lanczos steps at most."""


@final
@dataclass(frozen=True, eq=False)
class EvidenceCurve:
    """The log evidence at some prior precisions.

    Args:
        precisions: The prior precisions, in the order they were asked for.
        log_marginal: Log evidence at each, nats.
        stderr: Its standard error, nats; 0 where it is exact.
        at: What the curve is of; see ``evidence_curve``.

    Example:
        >>> precisions = torch.tensor([1.0, 2.0, 4.0, 8.0]).double()
        >>> curve = EvidenceCurve(precisions, -(precisions.log2() - 1.5).square(), 0 * precisions, "weights")
        >>> round(curve.best, 6), curve.inside
        (2.828427, True)
    """

    precisions: Float[Tensor, " m"]
    log_marginal: Float[Tensor, " m"]
    stderr: Float[Tensor, " m"]
    at: At

    @property
    def best(self) -> float:
        """The precision of largest evidence, by a parabola in its logarithm through the largest values."""
        return self._peak[0]

    @property
    def largest(self) -> float:
        """The log evidence there, nats."""
        return self._peak[1]

    @property
    def inside(self) -> bool:
        """Whether the largest of the values is not at an end of the curve, where a larger one may lie beyond."""
        place = int(self.log_marginal.argmax())
        return bool(
            (self.precisions < self.precisions[place]).any() and (self.precisions > self.precisions[place]).any()
        )

    @property
    def _peak(self) -> tuple[float, float]:
        top = int(self.log_marginal.argmax())
        logs, values = self.precisions.log().tolist(), self.log_marginal.tolist()
        found = vertex((x, -y) for x, y in zip(logs, values, strict=True))
        return (float(self.precisions[top]), values[top]) if found is None else (math.exp(found[0]), -found[1])


def evidence_curve(
    posterior: Posterior,
    precisions: Float[Tensor, "*m"] | Sequence[float],
    *,
    at: At = "weights",
    target: Target = "affine",
    solver: Solver | None = None,
    samples: int = 32,
    seed: int = 0,
    progress: bool = False,
) -> EvidenceCurve:
    """The log evidence of a posterior at other prior precisions, its curvature and its noise as they are.

        𝒢_u(A) = log p(y | u) - ½ |u|²_A - ½ log det(I + s A⁻¹ G)                  (Antorán 2024, section 5.2)

    ``at`` says what u is:

    - ``"weights"``: the trained weights; too small a precision is best where training stopped short of a mode.
    - ``"mode"``: the mode w* of the tangent model, found for every precision. For Gaussian noise and an exact G the
      evidence ``log N(y; J A⁻¹ Jᵀ + B⁻¹ / s)`` of the tangent model itself.

    Args:
        posterior: The posterior.
        precisions: Prior precisions, of all groups of weights; for a g-prior, its a.
        at: See above.
        target: The tangent model, where one is needed: ``"affine"`` or ``"simplified"``.
        solver: What finds modes; ``None`` for ``CG()``.
        samples: Probes of a ``MatrixFree`` posterior's log determinants; a ``Sampled`` one has its draws.
        seed: Of these probes, the same for every precision: the curve is smooth.
        progress: Whether to show a progress bar.

    Raises:
        ConfigError: If a precision is not a positive finite number, or ``at`` or ``target`` makes no sense.
        ShapeError: If the precisions are not a vector.
        UnsupportedError: If the posterior has no evidence.

    Warns:
        ConvergenceWarning: If the solves of a ``Sampled`` posterior, or the quadratures of a ``MatrixFree`` one, missed
            their tolerance.

    Cost:
        Exact posteriors: no data, a pass over the eigenvalues or a Cholesky factorisation each. ``MatrixFree``: one
        stochastic log determinant for all. ``Sampled``: one ``log_marginal`` for the largest precision, and from there
        a few block solves each. With ``"mode"`` besides, a ``Tangent.mode`` each, from the one before.

    Example:
        >>> import lapwing as lw
        >>> x = torch.randn(50, 2)
        >>> posterior = lw.Laplace(lw.Gaussian()).fit(torch.nn.Linear(2, 1), (x, x.sum(1, keepdim=True)))
        >>> evidence_curve(posterior, [0.01, 0.1, 1.0], at="mode").log_marginal.shape
        torch.Size([3])
    """
    check_kind("the posterior", posterior, (Posterior,), "evidence_curve(recipe.fit(model, data), [0.1, 1.0, 10.0])")
    check_option("at", at, get_args(At))
    check_count("seed", seed, 0)
    values = checked(precisions, "precisions=[0.1, 1.0, 10.0]")
    if values.ndim != 1:
        raise ShapeError("a vector of precisions [m]", "a single number", "precisions=[0.1, 1.0, 10.0]")
    order, present = values.argsort(descending=True), posterior.prior_precisions
    path = values[order].to(present)[:, None].expand(-1, len(present))
    with torch.no_grad():
        fits = _fits(posterior, path, at, target, solver, progress)
        joint = torch.stack([fit.log_joint(row, posterior.scale) for fit, row in zip(fits, path, strict=True)])
        ratio, spread = _log_det_ratios(posterior, path, samples, seed, progress)
    back = order.argsort()
    return EvidenceCurve(values, (joint - 0.5 * ratio).cpu()[back], 0.5 * spread.cpu()[back], at)


def _fits(
    posterior: Posterior, path: Float[Tensor, "m g"], at: At, target: Target, solver: Solver | None, progress: bool
) -> Iterator[LogEvidence]:
    """The evidence at the weights that belong to each point of the path."""
    base = posterior.joint_evidence
    if at == "weights":
        yield from [base] * len(path)
        return
    tangent, layout, like = Tangent(posterior.training, target), posterior.network.uncertain, posterior.network.like
    start: Float[Tensor, " d"] | None = None
    for row in tqdm(path, desc="modes", disable=not progress, unit="mode", leave=False):
        prior = posterior.prior.with_precisions(row.cpu()).operator(layout, like)
        mode = tangent.mode(prior, posterior.noise_scale, solver=solver, initial=start)
        start = mode.weights
        yield at_mode(base, posterior.prior.square_norms(start, layout), nll=mode.nll, misfit=mode.misfit)


def _log_det_ratios(
    posterior: Posterior, path: Float[Tensor, "m g"], samples: int, seed: int, progress: bool
) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """``log det(I + s A⁻¹ G)`` along a path of weaker and weaker priors, with standard errors."""
    if isinstance(posterior, ExactPosterior):
        complexity = posterior.evidence.complexity
        exact = torch.stack([complexity.log_det_ratio(row, posterior.scale) for row in path])
        return exact, torch.zeros_like(exact)
    layout, like = posterior.network.uncertain, posterior.network.like
    priors = [posterior.prior.with_precisions(row.cpu()).operator(layout, like) for row in path]
    if isinstance(posterior, SampledPosterior):
        found = posterior.log_det_ratios(priors, progress=progress)
        pairs = [(estimate.value, estimate.stderr) for estimate in found]
        value, error = torch.tensor(pairs, dtype=torch.float64, device=path.device).unbind(1)
        return value, error
    if not isinstance(posterior, MatrixFreePosterior):
        raise UnsupportedError("a posterior that has an evidence", f"{posterior!r}", "a structure of lapwing")
    return by_probes(posterior.problem, priors[0], path[0, 0] / path[:, 0], samples, seed)


def by_probes(
    problem: Problem, strongest: Diagonal, factors: Float[Tensor, " m"], samples: int, seed: int
) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """The ratios for a prior and weaker multiples of it, with standard errors, from one Lanczos recurrence a probe.

        log det(I + s f A⁻¹ G) = tr log(1 + s f A^-½ G A^-½) ≈ mean of |z|² Σ τ² log(1 + s f θ)

    Args:
        problem: The problem, whatever its prior.
        strongest: The prior precision A.
        factors: f, how many times weaker each is.
        samples: Probes, of random signs.
        seed: Of the probes.

    Warns:
        ConvergenceWarning: If ``STEPS`` did not suffice.

    Cost:
        At most ``STEPS`` products with ``samples`` columns, however many precisions there are.
    """
    scale, eps = problem.scale, torch.finfo(strongest.dtype).eps
    operator = problem.with_prior(strongest, scale).in_prior_units()
    functions = [lambda x, f=f: (scale * f * x.clamp_min(0)).log1p() for f in factors]
    generator = torch.Generator().manual_seed(seed)
    found = traces(operator, functions, samples=samples, steps=STEPS, eps=eps, generator=generator)
    if not found.converged:
        warn(
            f"log determinants still moved by up to {float(found.moved.max()):.2g} in the last third of {found.steps} "
            "Lanczos steps, those of the weakest priors most. Try precisions that are not so small, or KFAC()",
            ConvergenceWarning,
        )
    return found.mean, found.stderr
