"""Outputs that depend on one another across a batch: by their joint covariance, or by joint draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import ShapeError, check_count
from lapwing.predictive.moments import Moments, check_factor, nonnegative, semidefinite_root


@final
@dataclass(frozen=True, eq=False)
class JointMoments:
    """Gaussian outputs N(mean, covariance), all positions of the batch together.

    Args:
        mean: ``[n, *event, c]``.
        covariance: ``[n, *event, c, n, *event, c]``.
        factor: ``[n, *event, c, r]`` with covariance = factor factorᵀ over the last axis, where it is known.

    Raises:
        ShapeError: If the shapes do not belong together.

    Example:
        >>> moments = JointMoments(torch.zeros(2, 1), torch.ones(2, 1, 2, 1))
        >>> a, b = moments.sample(3).squeeze(-1).unbind(1)
        >>> torch.allclose(a, b)
        True
    """

    mean: Tensor
    covariance: Tensor
    factor: Tensor | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.mean.shape)
        if self.mean.ndim < 2 or tuple(self.covariance.shape) != shape + shape:
            raise ShapeError(
                "a mean [n, c] and a joint covariance [n, c, n, c]",
                f"shapes {list(shape)} and {list(self.covariance.shape)}",
                "Moments for one covariance a position [n, c, c]",
            )
        check_factor(self.factor, shape)

    @cached_property
    def variance(self) -> Float[Tensor, "*batch c"]:
        """Variance of each output, ``[n, *event, c]``; see ``Moments.variance``."""
        return nonnegative(self._matrix.diagonal(), "variance").reshape(self.mean.shape)

    @property
    def std(self) -> Float[Tensor, "*batch c"]:
        """Standard deviation of each output, ``[n, *event, c]``."""
        return self.variance.sqrt()

    def root(self) -> Float[Tensor, "*batch c r"]:
        """R ``[n, *event, c, r]`` with R Rᵀ = covariance over the last axis; see ``Moments.root``.

        Cost: the first time O((n c)³) where no factor with at most n c columns is known.
        """
        return self._root

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """Draws of the whole batch at once, ``[k, n, *event, c]``: each is one coherent function.

        Args:
            k: Number of draws.
            generator: Source of randomness; ``None`` draws from PyTorch's global one.
        """
        check_count("k", k)
        root = self.root().reshape(self.mean.numel(), -1)
        noise = probes.gaussian([k, root.shape[1]], like=self.mean, generator=generator)
        return self.mean + (noise @ root.mT).reshape(k, *self.mean.shape)

    def scaled(self, by: float) -> JointMoments:
        """Moments of the outputs times a number; see ``Moments.scaled``."""
        factor = None if self.factor is None else by * self.factor
        return JointMoments(by * self.mean, by**2 * self.covariance, factor)

    def marginal(self) -> Moments:
        """The moments of each position on its own."""
        positions, c = prod(self.mean.shape[:-1]), self.mean.shape[-1]
        blocks = self.covariance.reshape(positions, c, positions, c).diagonal(dim1=0, dim2=2)
        return Moments(self.mean, blocks.movedim(-1, 0).reshape(*self.mean.shape, c), self.factor)

    def select(self, outputs: slice) -> JointMoments:
        """Moments of some of the outputs; see ``Moments.select``."""
        factor = None if self.factor is None else self.factor[..., outputs, :]
        rows = self.covariance[..., outputs].movedim(self.mean.ndim - 1, -1)[..., outputs]
        covariance = rows.movedim(-1, self.mean.ndim - 1)
        return JointMoments(self.mean[..., outputs], covariance, factor)

    @property
    def _matrix(self) -> Tensor:
        return self.covariance.reshape(self.mean.numel(), self.mean.numel())

    @cached_property
    def _root(self) -> Tensor:
        if self.factor is not None and self.factor.shape[-1] <= self.mean.numel():
            return self.factor
        return semidefinite_root(self._matrix).reshape(*self.mean.shape, -1)


@final
@dataclass(frozen=True, eq=False)
class Draws:
    """Outputs known by draws, such as those of networks whose weights were drawn.

    Moments are estimated from the draws (the covariance divided by s - 1; 0 for a single draw).

    Args:
        values: ``[s, n, *event, c]``, draw s of the whole batch together.

    Raises:
        ShapeError: If there is no draw or no output axis.

    Example:
        >>> Draws(torch.tensor([[[1.0]], [[3.0]]])).std
        tensor([[1.4142]])
    """

    values: Tensor

    def __post_init__(self) -> None:
        if self.values.ndim < 3 or not self.values.shape[0]:
            raise ShapeError(
                "at least one draw of the outputs, [s, n, *event, c]",
                f"shape {list(self.values.shape)}",
                "torch.stack of the outputs [n, c] of each drawn network",
            )

    @cached_property
    def mean(self) -> Float[Tensor, "*batch c"]:
        """Average over the draws, ``[n, *event, c]``."""
        return self.values.mean(0)

    @cached_property
    def covariance(self) -> Float[Tensor, "*batch c c"]:
        """Covariance of each position over the draws, ``[n, *event, c, c]``."""
        return self.factor @ self.factor.mT

    @cached_property
    def factor(self) -> Float[Tensor, "*batch c s"]:
        """Centred draws over √(s - 1), ``[n, *event, c, s]``."""
        return (self.values - self.mean).movedim(0, -1) / max(self.values.shape[0] - 1, 1) ** 0.5

    @property
    def variance(self) -> Float[Tensor, "*batch c"]:
        """Variance of each output, ``[n, *event, c]``."""
        return self.factor.square().sum(-1)

    @property
    def std(self) -> Float[Tensor, "*batch c"]:
        """Standard deviation of each output, ``[n, *event, c]``."""
        return self.variance.sqrt()

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """``k`` of the draws in random order, ``[k, n, *event, c]``; none twice before all were taken once.

        Args:
            k: Number of draws.
            generator: Source of randomness; ``None`` draws from PyTorch's global one.
        """
        check_count("k", k)
        s = self.values.shape[0]
        keys = probes.gaussian([-(-k // s), s], like=self.values, generator=generator)
        return self.values[keys.argsort(-1).reshape(-1)[:k]]

    def scaled(self, by: float) -> Draws:
        """Draws of the outputs times a number; see ``Moments.scaled``."""
        return Draws(by * self.values)

    def marginal(self) -> Moments:
        """The moments of each position on its own."""
        return Moments(self.mean, self.covariance, self.factor)

    def select(self, outputs: slice) -> Draws:
        """Draws of some of the outputs; see ``Moments.select``."""
        return Draws(self.values[..., outputs])
