"""The trace from products, each estimate with its standard error."""

from __future__ import annotations

import torch
from jaxtyping import Float
from scipy.special import ndtri, stdtrit
from torch import Tensor

from lapwing.ground.errors import check_count
from lapwing.ground.probes import gaussian, rademacher
from lapwing.ground.results import Estimate
from lapwing.linalg.eigenbasis import finite
from lapwing.linalg.operator import Operator, check_square, in_float64

LEVEL = 0.975
"""Upper end of the central interval of 95 %."""


def hutchinson(
    operator: Operator, *, samples: int = 32, signs: bool = True, generator: torch.Generator | None = None
) -> Estimate:
    """``tr A`` as the mean of ``zᵀ A z`` over random probes (Girard 1989; Hutchinson 1990).

    Args:
        operator: ``A``, ``[d, d]``.
        samples: Probes, at least 2.
        signs: Probes of random signs, whose variance for symmetric ``A`` is ``2 Σ_{i≠j} A_ij²``: the least there is.
            Otherwise Gaussian ones, ``2 |A|_F²``.
        generator: Source of the probes.

    Returns:
        The estimate; unbiased.

    Raises:
        ShapeError: ``A`` is not square.
        ConfigError: Fewer than 2 samples.
        NumericalError: A product is not finite.

    Cost: one product with ``samples`` columns; ``16 d samples`` bytes.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> hutchinson(Diagonal(torch.tensor([1.0, 2.0, 3.0])))
        Estimate(value=6.0, stderr=0.0, samples=32)
    """
    size, product = check_square(operator), in_float64(operator)
    check_count("samples", samples, 2)
    z = (rademacher if signs else gaussian)([size, samples], like=product.like, generator=generator)
    return Estimate.of((z * finite(product @ z)).sum(0))


def hutch_plus_plus(operator: Operator, *, samples: int = 48, generator: torch.Generator | None = None) -> Estimate:
    """``tr A`` exactly on the range of a sketch and by Hutchinson on the rest (Meyer et al. 2021, algorithm 1).

        tr A ≈ tr(Qᵀ A Q) + mean of zᵀ (I - Q Qᵀ) A (I - Q Qᵀ) z,   Q = orth(A S)

    A third of the columns each for ``S``, ``Q`` and ``z``, all random signs: for positive semi-definite ``A`` the error
    falls as one over their number, for ``hutchinson`` as one over its root.

    Args:
        operator: Symmetric ``A``, ``[d, d]``.
        samples: Columns in all, at least 6.
        generator: Source of the probes.

    Returns:
        The estimate, unbiased, with the standard error of its second part, whose ``z`` alone ``samples`` counts. It is
        widened as few of them ask, by Student's t: 1.96 of it hold the trace in about 95 % of all cases.

    Raises:
        ShapeError: ``A`` is not square.
        ConfigError: Fewer than 6 samples.
        NumericalError: A product is not finite.

    Cost: products with ``samples`` columns in two blocks; ``16 d samples`` bytes.

    Example:
        >>> from lapwing.linalg import LowRank
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimate = hutch_plus_plus(LowRank(torch.ones(4, 1).double()), samples=6, generator=generator)
        >>> round(estimate.value, 6), round(estimate.stderr, 6)
        (4.0, 0.0)
    """
    size, product = check_square(operator), in_float64(operator)
    check_count("samples", samples, 6)
    third = min(samples // 3, size)
    sketch = rademacher([size, third], like=product.like, generator=generator)
    z = rademacher([size, samples - 2 * third], like=product.like, generator=generator)
    q = torch.linalg.qr(finite(product @ sketch)).Q
    z = z - q @ (q.mT @ z)
    both = finite(product @ torch.cat([q, z], 1))
    rest = Estimate.of((z * both[:, third:]).sum(0))
    few = float(stdtrit(rest.samples - 1, LEVEL) / ndtri(LEVEL))
    return Estimate((q * both[:, :third]).sum().item() + rest.value, few * rest.stderr, rest.samples)


def xtrace(operator: Operator, *, samples: int = 48, generator: torch.Generator | None = None) -> Estimate:
    """``tr A`` by Hutch++ in which every probe is sketch and sample in turn (Epperly, Tropp & Webber 2024, XTrace).

    With ``Q_i`` an orthonormal basis of the range of ``A Ω`` without its column ``i``, the mean over ``i`` of

        t_i = tr(Q_iᵀ A Q_i) + c_i ω_iᵀ (I - Q_i Q_iᵀ) A (I - Q_i Q_iᵀ) ω_i.

    All ``Q_i`` come from one ``A Ω = Q R``: ``Q_i Q_iᵀ = Q (I - s_i s_iᵀ) Qᵀ`` with ``s_i`` the normalised column of
    ``R⁻ᵀ``, and ``Qᵀ A Ω = R``. The factor ``c_i`` gives what is left of ``ω_i`` the length it has on average, so that
    only its direction is random.

    The ``t_i`` share their sketch, and their spread understates the error of their mean, up to threefold where the
    probes are not few beside ``d``. The standard error is therefore the jackknife's: the whole estimate is repeated
    without each of the probes, at no further product. On average it is no less than the error of the estimate with one
    probe fewer (Efron & Stein 1981).

    Args:
        operator: Symmetric ``A``, ``[d, d]``.
        samples: Columns in all, at least 6; half of them are the probes ``Ω``.
        generator: Source of the probes.

    Returns:
        The estimate, unbiased; ``samples`` counts the probes. Exact where they are as many as ``d``.

    Raises:
        ShapeError: ``A`` is not square.
        ConfigError: Fewer than 6 samples.
        NumericalError: A product is not finite.

    Cost: two products with half the columns each, and ``samples⁴`` flops; ``16 d samples + samples³`` bytes.

    Example:
        >>> from lapwing.linalg import LowRank
        >>> estimate = xtrace(LowRank(torch.ones(4, 1).double()), samples=6)
        >>> round(estimate.value, 6), round(estimate.stderr, 6)
        (4.0, 0.0)
    """
    size, product = check_square(operator), in_float64(operator)
    check_count("samples", samples, 6)
    probes = min(samples // 2, size)
    omega = gaussian([size, probes], like=product.like, generator=generator)
    q, r = torch.linalg.qr(finite(product @ omega))
    h, w, lengths = q.mT @ finite(product @ q), q.mT @ omega, omega.square().sum(0)
    if probes == size:
        return Estimate(h.trace().item(), 0.0, probes)
    value = _left_out(h, r, w, lengths, size).mean().item()
    others = torch.arange(probes).expand(probes, -1)[~torch.eye(probes, dtype=torch.bool)].view(probes, -1)
    basis, fewer = torch.linalg.qr(r.mT[others].mT)  # of all probes but i, for every i
    without = _left_out(basis.mT @ h @ basis, fewer, basis.mT @ w.mT[others].mT, lengths[others], size).mean(-1)
    return Estimate(value, (without.var(correction=0) * (probes - 1)).sqrt().item(), probes)


def _left_out(
    h: Float[Tensor, "*n k k"], r: Float[Tensor, "*n k k"], w: Float[Tensor, "*n k k"], lengths: Tensor, size: int
) -> Float[Tensor, "*n k"]:
    """The ``t_i``, from ``Qᵀ A Q``, ``R``, ``Qᵀ Ω`` and the squared lengths of the ``ω_i``."""
    entries = r.diagonal(dim1=-2, dim2=-1).abs()
    floor = (torch.finfo(r.dtype).eps * entries.amax(-1, keepdim=True)).clamp(min=1e-150)
    regular = r + torch.where(entries < floor, floor, 0.0).diag_embed()
    identity = torch.eye(r.shape[-1], dtype=r.dtype, device=r.device)
    inverse = torch.linalg.solve_triangular(regular, identity, upper=True)
    s = torch.nn.functional.normalize(inverse.mT, dim=-2, eps=0.0)  # each orthogonal to all columns of R but its own
    x = w - s * (s * w).sum(-2, keepdim=True)  # Q_i Q_iᵀ ω_i = Q x_i
    rest = (w * r).sum(-2) - 2 * (x * r).sum(-2) + (x * (h @ x)).sum(-2)
    scale = (size - r.shape[-1] + 1) / (lengths - x.square().sum(-2))
    return h.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True) - (s * (h @ s)).sum(-2) + scale * rest
