"""What is known of a network's outputs: their mean and covariance at each position."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import NumericalError, ShapeError, check_count


@final
@dataclass(frozen=True, eq=False)
class Moments:
    """Gaussian outputs N(mean, covariance), each position on its own.

    The covariance may be singular: it is never inverted.

    Args:
        mean: ``[n, *event, c]``.
        covariance: ``[n, *event, c, c]``.
        factor: ``[n, *event, c, r]`` with covariance = factor factorᵀ, where it is known.

    Raises:
        ShapeError: If the shapes do not belong together.

    Example:
        >>> moments = Moments(torch.zeros(1, 2), 4 * torch.eye(2).expand(1, 2, 2))
        >>> moments.std, moments.sample(16).shape
        (tensor([[2., 2.]]), torch.Size([16, 1, 2]))
    """

    mean: Tensor
    covariance: Tensor
    factor: Tensor | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.mean.shape)
        if self.mean.ndim < 2 or tuple(self.covariance.shape) != (*shape, shape[-1]):
            raise ShapeError(
                "a mean [n, *event, c] and a covariance [n, *event, c, c]",
                f"shapes {list(shape)} and {list(self.covariance.shape)}",
                "JointMoments for a covariance over the whole batch [n, c, n, c]",
            )
        check_factor(self.factor, shape)

    @classmethod
    def from_factor(cls, mean: Float[Tensor, "*batch c"], factor: Float[Tensor, "*batch c r"]) -> Moments:
        """Moments with covariance factor factorᵀ.

        Args:
            mean: ``[n, *event, c]``.
            factor: ``[n, *event, c, r]``.
        """
        return cls(mean, factor @ factor.mT, factor)

    @classmethod
    def certain(cls, mean: Float[Tensor, "*batch c"]) -> Moments:
        """Outputs without uncertainty: those of a plain network.

        Args:
            mean: ``[n, *event, c]``.
        """
        return cls(mean, mean.new_zeros(()).expand(*mean.shape, mean.shape[-1]), mean[..., None][..., :0])

    @cached_property
    def variance(self) -> Float[Tensor, "*batch c"]:
        """Variance of each output, ``[n, *event, c]``; negative rounding errors become 0.

        Raises:
            NumericalError: If one is negative beyond rounding, or NaN.
        """
        return nonnegative(self.covariance.diagonal(dim1=-2, dim2=-1), "variance")

    @property
    def std(self) -> Float[Tensor, "*batch c"]:
        """Standard deviation of each output, ``[n, *event, c]``."""
        return self.variance.sqrt()

    def root(self) -> Float[Tensor, "*batch c r"]:
        """R with R Rᵀ = covariance: the factor where it has at most c columns, else by an eigendecomposition.

        Raises:
            NumericalError: If the covariance is indefinite beyond rounding, or not finite.

        Cost: the first time O(n c³), in float64.
        """
        return self._root

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """Independent draws mean + R ε, ``[k, n, *event, c]``; positions are drawn independently.

        Args:
            k: Number of draws.
            generator: Source of randomness; ``None`` draws from PyTorch's global one.
        """
        check_count("k", k)
        root = self.root()
        noise = probes.gaussian([k, *self.mean.shape[:-1], root.shape[-1]], like=self.mean, generator=generator)
        return self.mean + torch.einsum("...cr,k...r->k...c", root, noise)

    def scaled(self, by: float) -> Moments:
        """Moments of the outputs times a number.

        Args:
            by: The number.
        """
        return Moments(by * self.mean, by**2 * self.covariance, None if self.factor is None else by * self.factor)

    def marginal(self) -> Moments:
        """These moments themselves: each position already stands alone."""
        return self

    def select(self, outputs: slice) -> Moments:
        """Moments of some of the outputs.

        Args:
            outputs: Which of the c to keep.
        """
        factor = None if self.factor is None else self.factor[..., outputs, :]
        return Moments(self.mean[..., outputs], self.covariance[..., outputs, outputs], factor)

    @cached_property
    def _root(self) -> Tensor:
        if self.factor is not None and self.factor.shape[-1] <= self.mean.shape[-1]:
            return self.factor
        return semidefinite_root(self.covariance)


def check_factor(factor: Tensor | None, shape: tuple[int, ...]) -> None:
    """Raise unless a covariance factor is ``[*shape, r]``.

    Raises:
        ShapeError: If it is not.
    """
    if factor is not None and tuple(factor.shape[:-1]) != shape:
        raise ShapeError(
            f"a factor of shape {[*shape, 'r']}",
            f"shape {list(factor.shape)}",
            "a factor with covariance = factor @ factor.mT",
        )


def nonnegative(values: Tensor, what: str, dtype: torch.dtype | None = None) -> Tensor:
    """Values with what rounding made negative put to 0.

    Args:
        values: Variances or eigenvalues, all of one computation.
        what: Their name in the message.
        dtype: Precision they were computed in, that of ``values`` by default; values above -√eps times the
            largest magnitude count as rounding.

    Raises:
        NumericalError: If one is negative beyond that, or not finite.
    """
    if not values.numel():
        return values
    largest, lowest = float(values.detach().abs().max()), float(values.detach().min())
    if not (lowest >= -(torch.finfo(dtype or values.dtype).eps ** 0.5) * largest and largest < float("inf")):
        raise NumericalError(
            "a finite, positive semi-definite covariance of the outputs",
            f"a smallest {what} of {lowest:g} where the largest magnitude is {largest:g}",
            "float64, or a larger prior precision",
        )
    return values.clamp(min=0.0)


def semidefinite_root(matrix: Float[Tensor, "*batch c c"]) -> Float[Tensor, "*batch c c"]:
    """R with R Rᵀ = matrix for a positive semi-definite matrix, by eigenvalues in float64.

    Raises:
        NumericalError: If an eigenvalue is negative beyond rounding, or an entry not finite.
    """
    nonnegative(matrix.diagonal(dim1=-2, dim2=-1), "variance")
    double = matrix.double()
    values, vectors = torch.linalg.eigh(0.5 * (double + double.mT))
    roots = nonnegative(values, "eigenvalue", matrix.dtype).sqrt()
    return (vectors * roots.unsqueeze(-2)).to(matrix.dtype)
