"""The log-determinant by stochastic Lanczos quadrature."""

from __future__ import annotations

import torch

from lapwing.ground.errors import NumericalError, check_count, check_positive
from lapwing.ground.probes import rademacher
from lapwing.ground.results import Estimate
from lapwing.linalg.congruence import congruence
from lapwing.linalg.krylov import Krylov
from lapwing.linalg.lanczos import lanczos
from lapwing.linalg.operator import Operator, check_square
from lapwing.linalg.structured import Structured


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
    exact, dtype = 0.0, operator.dtype
    if preconditioner is not None:
        exact = preconditioner.logdet().item()
        operator = congruence(operator, preconditioner.inverse_root())
    like = torch.empty(0, dtype=torch.float64, device=operator.device)
    probes = rademacher([check_square(operator), samples], like=like, generator=generator)
    rounding = torch.finfo(dtype).eps * len(probes)

    def converged(krylov: Krylov) -> bool:
        _, stderr, moved = _average(krylov)
        return bool(krylov.exhausted.all()) or (krylov.steps > 1 and moved <= bias * stderr + rounding)

    krylov = lanczos(operator, probes, steps, reorthogonalise="none", until=converged)
    mean, stderr, moved = _average(krylov)
    if not converged(krylov):
        stderr = (stderr**2 + moved**2) ** 0.5
    return Estimate(exact + mean, max(stderr, rounding), samples)


def _average(krylov: Krylov) -> tuple[float, float, float]:
    """Mean, its standard error, and how far the last third of the steps moved the mean."""
    smallest = krylov.ritz[0].min().item()
    if smallest <= 0:
        raise NumericalError(
            "a positive definite operator",
            f"a Ritz value of {smallest:.3g} (largest {krylov.ritz[0].max().item():.3g})",
            "a larger prior precision, or products in float64 if that is beyond what theirs resolve",
        )
    values, before = krylov.quadrature(torch.log), krylov.earlier.quadrature(torch.log)
    samples = len(values)
    return values.mean().item(), values.std().item() / samples**0.5, abs((values - before).mean().item())
