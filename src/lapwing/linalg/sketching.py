"""What products with one random block tell of a matrix: a Nyström factor, and the orthonormal blocks it takes."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import NumericalError, check_count
from lapwing.ground.probes import gaussian
from lapwing.linalg.checks import finite
from lapwing.linalg.operators.base import Operator, check_square, in_float64


def nystrom(
    operator: Operator, rank: int, *, power: int = 0, generator: torch.Generator | None = None
) -> Float[Tensor, "d r"]:
    """A factor ``F`` of a positive semi-definite matrix, ``F Fᵀ ≈ A``, from one product with a random block.

        F Fᵀ = (A Ω) (Ωᵀ A Ω)⁻¹ (A Ω)ᵀ                                    (Tropp et al. 2017, algorithm 3)

    computed for ``A + νI`` with a shift ``ν`` of the size of rounding, which is taken off the eigenvalues again. It
    never exceeds ``A``, and with ``rank`` three times the effective dimension of ``A`` at ``α`` the preconditioner
    ``P = F Fᵀ + α I`` makes the condition number of ``P⁻¹ (A + α I)`` less than 28 on average (Frangella, Tropp & Udell
    2023, theorem 1.1).

    Args:
        operator: Symmetric positive semi-definite ``A``, ``[d, d]``.
        rank: Columns of ``Ω``.
        power: Products that turn ``Ω`` towards the largest eigenvalues first, each made orthonormal.
        generator: Source of ``Ω``.

    Returns:
        ``F``, in the operator's dtype; orthogonal columns, longest first, those of length 0 left out.

    Raises:
        ShapeError: ``A`` is not square.
        ConfigError: The rank is not positive.
        NumericalError: A product is not finite, or ``A`` not positive semi-definite.

    Cost: ``power + 1`` products with ``rank`` columns; ``24 d rank`` bytes.

    Example:
        >>> from lapwing.linalg import Diagonal
        >>> factor = nystrom(Diagonal(torch.tensor([4.0, 0.0, 0.0]).double()), 2)
        >>> factor.shape, round(factor.square().sum().item(), 6)
        (torch.Size([3, 1]), 4.0)
    """
    size = check_square(operator)
    check_count("rank", rank)
    check_count("power", power, 0)
    product = in_float64(operator)
    omega = random_orthonormal(product.like.new_empty(size, 0), rank, generator)
    for _ in range(power):
        omega = torch.linalg.qr(finite(product @ omega)).Q
    sketch = finite(product @ omega)
    core = omega.mT @ sketch
    length = torch.linalg.matrix_norm(sketch).item()
    if length == 0:
        return sketch[:, :1].to(operator.device, operator.dtype)
    lower, shift = _shifted_cholesky((core + core.mT) / 2, length, torch.finfo(operator.dtype).eps)
    half = torch.linalg.solve_triangular(lower, (sketch + shift * omega).mT, upper=False).mT
    vectors, singular, _ = torch.linalg.svd(half, full_matrices=False)
    values = (singular.square() - shift).clamp(min=0)
    kept = max(1, int((values > shift).sum()))
    return (vectors[:, :kept] * values[:kept].sqrt()).to(operator.device, operator.dtype)


def _shifted_cholesky(core: Float[Tensor, "r r"], length: float, eps: float) -> tuple[Float[Tensor, "r r"], float]:
    """The Cholesky factor of ``Ωᵀ A Ω + ν I``, and the least ν of the size of rounding with which there is one.

    Args:
        core: ``Ωᵀ A Ω``.
        length: ``|A Ω|``, beside which ν is small.
        eps: Rounding of the products.

    Raises:
        NumericalError: There is none.
    """
    eye = torch.eye(len(core), dtype=core.dtype, device=core.device)
    for exponent in range(4):
        shift = length * eps * 10.0**exponent
        lower, failed = torch.linalg.cholesky_ex(core + shift * eye)
        if not failed:
            return lower, shift
    smallest = torch.linalg.eigvalsh(core)[0].item()
    raise NumericalError(
        "a positive semi-definite operator",
        f"uᵀAu = {smallest:.3g} for a unit vector u (|A Ω| = {length:.3g})",
        "the GGN rather than the Hessian",
    )


def random_orthonormal(
    basis: Float[Tensor, "d m"], columns: int, generator: torch.Generator | None
) -> Float[Tensor, "d b"]:
    """Random orthonormal columns that are orthogonal to a basis, as many as there is room for."""
    size, used = basis.shape
    drawn = gaussian([size, min(columns, size - used)], like=basis, generator=generator)
    return orthonormal(drawn, basis)


def orthonormal(block: Float[Tensor, "d b"], basis: Float[Tensor, "d m"]) -> Float[Tensor, "d b"]:
    """Orthonormal columns for the span of a block, orthogonal to a basis."""
    return torch.linalg.qr(block - basis @ (basis.mT @ block)).Q
