"""Where an inexact solve is wrong: errors of its coefficients in three norms, and along spectral basis functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.gp.kernels.base import Kernel
from lapwing.gp.kernels.matrix import KernelMatrix, cross_product
from lapwing.ground import probes
from lapwing.ground.errors import check_count
from lapwing.linalg import Operator
from lapwing.linalg.eigenpairs import top_eigenpairs


@final
@dataclass(frozen=True, eq=False)
class SpectralBasis:
    """``v_i(·) = Σ_j V_ji / √λ_i k(x_j, ·)`` with ``K = V Λ Vᵀ`` (Antorán 2024, section 4.4), orthonormal in the RKHS.

    Those of large λ live where there are many data, and iterative solves find them first; those of small λ live at the
    edges of the data.

    Args:
        kernel: k.
        inputs: X.
        values: λ, largest first.
        vectors: V, ``[n, k]``.
    """

    kernel: Kernel
    inputs: Float[Tensor, "n p"]
    values: Float[Tensor, " k"]
    vectors: Float[Tensor, "n k"]

    def __call__(self, x: Float[Tensor, "m p"]) -> Float[Tensor, "m k"]:
        """All functions at some inputs.

        Args:
            x: Inputs.
        """
        return cross_product(self.kernel, x, self.inputs, self.vectors / self.values.sqrt())

    def projections(self, coefficients: Float[Tensor, "n c"]) -> Float[Tensor, "k c"]:
        """``⟨v_i, f⟩ = √λ_i V_iᵀ α`` in the RKHS, for ``f = K_{(·)X} α``.

        Args:
            coefficients: α, such as the difference between those of two solves.
        """
        return self.values.sqrt()[:, None] * (self.vectors.mT @ coefficients)


def spectral_basis(
    kernel: Kernel,
    inputs: Float[Tensor, "n p"],
    count: int = 10,
    *,
    generator: torch.Generator | int | None = 0,
) -> SpectralBasis:
    """The spectral basis functions of the largest eigenvalues.

    Args:
        kernel: k.
        inputs: X.
        count: How many, at most n.
        generator: Source of the block the search starts with, or its seed; ``None`` draws from PyTorch's global one.

    Raises:
        ConfigError: If there is none to find.

    Cost:
        Products of blocks of ``count`` columns with the kernel matrix, until the eigenvectors stand.

    Example:
        >>> from lapwing.gp.kernels.stationary import RBF
        >>> x = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None]
        >>> spectral_basis(RBF(0.2), x, 3)(x[:7]).shape
        torch.Size([7, 3])
    """
    check_count("count", count)
    source = probes.generator_of(generator)
    found = top_eigenpairs(KernelMatrix(kernel, inputs), min(count, len(inputs)), rtol=1e-8, generator=source)
    order = found.values.argsort(descending=True)
    return SpectralBasis(kernel, inputs, found.values[order].to(inputs), found.vectors[:, order].to(inputs))


@final
@dataclass(frozen=True)
class Norms:
    """Relative errors of the coefficients of a function, in the norms of descents (Antorán 2024, section 4.2.3).

    Args:
        euclidean: ``|α - α*|``.
        kernel: ``|α - α*|_K``, that of the RKHS, which bounds the error of the function everywhere.
        squared: ``|α - α*|_{K²}``, the error at the data.
    """

    euclidean: float
    kernel: float
    squared: float


def error_norms(matrix: Operator, found: Float[Tensor, "n c"], exact: Float[Tensor, "n c"]) -> Norms:
    """How far some coefficients are from the exact ones.

    Args:
        matrix: K.
        found: α.
        exact: α*.

    Example:
        >>> from lapwing.gp.kernels.polynomial import Constant
        >>> matrix = KernelMatrix(Constant(), torch.zeros(2, 1))
        >>> error_norms(matrix, torch.tensor([[2.0], [0.0]]), torch.tensor([[1.0], [1.0]]))
        Norms(euclidean=1.0, kernel=0.0, squared=0.0)
    """
    errors = _norms(matrix, found - exact)
    sizes = _norms(matrix, exact)
    return Norms(*(errors / sizes).tolist())


def _norms(matrix: Operator, coefficients: Float[Tensor, "n c"]) -> Float[Tensor, " 3"]:
    """``|α|``, ``|α|_K`` and ``|α|_{K²}``."""
    product = matrix @ coefficients
    inside = (coefficients * product).sum().clamp_min(0.0).sqrt()
    return torch.stack([coefficients.norm(), inside, product.norm()])
