"""The log determinant of a symmetric operator from its products, by random probes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapwing.ground.errors import NumericalError, check_count, check_positive
from lapwing.ground.precision import wide_like
from lapwing.ground.probes import rademacher
from lapwing.ground.results import Estimate
from lapwing.linalg.lanczos import Krylov, lanczos
from lapwing.linalg.operators.base import Operator, Structured, check_square, congruence


def log_determinant(
    operator: Operator,
    *,
    samples: int = 32,
    steps: int = 200,
    bias: float = 0.1,
    preconditioner: Structured | None = None,
    generator: torch.Generator | None = None,
) -> Estimate:
    """``log det A`` from products: an average over probes, each a Gauss quadrature.

        log det A = log det P + tr log(Wᵀ A W),   W Wᵀ = P⁻¹,
        tr log M ≈ mean of |z|² Σ τ² log θ over probes z                             (Ubaru, Chen & Saad 2017)

    The probes are random signs: of all probes with independent entries they have the least variance,
    ``2 Σ_{i≠j} (log M)_ij²``, none where ``M`` is diagonal. Gauss quadratures of the logarithm err upwards, and by
    less with each step. All probes go on until the last third of the steps moved their mean by less than ``bias``
    standard errors; where ``steps`` do not suffice for that, the standard error grows by what that third moved it.

    Args:
        operator: Symmetric positive definite ``A``, ``[d, d]``.
        samples: Probes, at least 2. As with any mean, 1.96 standard errors cover less than 95 % where there are few:
            93 % with 16, 94 % with 32.
        steps: Lanczos steps at most.
        bias: Quadrature error to allow, in standard errors.
        preconditioner: ``P``, near ``A``: the nearer, the smaller the variance and the fewer the steps.
        generator: Source of the probes.

    Returns:
        The estimate, nats. Its standard error is at least ``ε d``, with ``ε`` the relative rounding of the operator's
        dtype: where ``P`` is near ``A`` the probes agree with each other to less than their products are off.

    Raises:
        ShapeError: ``A`` is not square, or ``P`` does not fit.
        ConfigError: Fewer than 2 samples, no steps, or a bias that is not positive.
        NumericalError: A product is not finite, or ``A`` not positive definite.

    Cost: at most ``steps`` products with ``samples`` columns, each between one with ``W`` and one with ``Wᵀ``;
    ``24 d samples`` bytes.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> estimate = log_determinant(Diagonal(torch.tensor([1.0, 2.0, 4.0]).double()))
        >>> round(estimate.value, 6), round(estimate.stderr, 6)  # log 8
        (2.079442, 0.0)
    """
    check_count("samples", samples, 2)
    check_positive("bias", bias)
    exact = 0.0
    rounding = torch.finfo(operator.dtype).eps * check_square(operator)
    if preconditioner is not None:
        exact = preconditioner.logdet().item()
        operator = congruence(operator, preconditioner.inverse_root())
    like = torch.empty(0, **wide_like(operator.device))
    probes = rademacher([operator.shape[0], samples], like=like, generator=generator)

    def estimate(krylov: Krylov) -> tuple[Estimate, bool]:
        """What the quadratures say, and whether more steps would move it by little."""
        now = krylov.quadrature(_log)
        before = krylov.earlier.quadrature(_log)
        stderr = float(now.std()) / samples**0.5
        moved = float((now - before).mean().abs())
        little = krylov.steps > 1 and moved <= bias * stderr + rounding
        converged = little or bool(krylov.exhausted.all())
        error = stderr if converged else math.hypot(stderr, moved)
        return Estimate(exact + float(now.mean()), max(error, rounding), samples), converged

    def settled(krylov: Krylov) -> bool:
        return estimate(krylov)[1]

    return estimate(lanczos(operator, probes, steps, reorthogonalise=False, until=settled))[0]


def _log(values: Tensor) -> Tensor:
    """The logarithm of Ritz values, refused where they are those of no positive definite operator."""
    if values.min() <= 0:
        raise NumericalError(
            "a positive definite operator",
            f"a Ritz value of {values.min().item():.3g} (largest {values.max().item():.3g})",
            "a larger prior precision, or products in float64 if that is beyond what theirs resolve",
        )
    return values.log()
