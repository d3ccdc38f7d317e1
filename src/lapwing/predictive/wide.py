"""What is known of outputs too many for a covariance a position: its eigenvalues, in one basis for all positions."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeAlias, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import check_bytes, check_count
from lapwing.ground.results import Shown
from lapwing.predictive.outputs import Draws, JointMoments, Moments

MAX_BYTES = 2**30
"""Bytes that covariances made on request may take (1 GiB)."""

CHUNK = 2**24
"""Bytes of their roots made at a time (16 MiB)."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class WideMoments(Shown):
    """Gaussian outputs ``N(mean, E diag(values) Eᵀ)`` at each position, with one orthogonal E for all of them.

    E is the identity, but for some outputs that it mixes among themselves. Variances and draws take c numbers a
    position; the covariance is made only when it is asked for.

    Args:
        mean: ``[n, *event, c]``.
        values: ``[n, *event, c]``, variances along the columns of E.
        rows: The outputs that E mixes.
        vectors: How: orthonormal columns.

    Example:
        >>> moments = WideMoments(torch.zeros(1, 3), torch.tensor([[1.0, 4.0, 9.0]]))
        >>> moments.std, moments.sample(16).shape
        (tensor([[1., 2., 3.]]), torch.Size([16, 1, 3]))
    """

    mean: Float[Tensor, "*batch c"]
    values: Float[Tensor, "*batch c"]
    rows: Int[Tensor, " k"] | None = None
    vectors: Float[Tensor, "k k"] | None = None

    @property
    def variance(self) -> Float[Tensor, "*batch c"]:
        """Variance of each output."""
        return self._mixed(self.values, 2)

    @property
    def std(self) -> Float[Tensor, "*batch c"]:
        """Standard deviation of each output."""
        return self.variance.sqrt()

    @property
    def covariance(self) -> Float[Tensor, "*batch c c"]:
        """The covariance of each position.

        Raises:
            TooLargeError: If it takes more than ``MAX_BYTES``.
        """
        c = self.mean.shape[-1]
        needed = self.mean.numel() * c * self.mean.element_size()
        got = f"those of {c:,} outputs at {self.mean[..., 0].numel():,} positions, which need"
        hint = "fewer inputs at a time; .variance or .sample(k); or link='probit' or 'mc', which need none"
        check_bytes("covariances", needed, MAX_BYTES, got, hint)
        return self.written.covariance

    @property
    def written(self) -> Moments:
        """The same with the covariances written down, however many bytes they take."""
        c, roots = self.mean.shape[-1], self.values.sqrt().reshape(-1, self.mean.shape[-1])
        each = max(1, CHUNK // (c**2 * roots.element_size()))

        def squared(root: Tensor) -> Tensor:
            return root.mT @ root

        parts = [squared(self._mixed(torch.diag_embed(some), 1)) for some in roots.split(each)]
        return Moments(self.mean, torch.cat(parts).view(*self.mean.shape, c))

    def root(self) -> Float[Tensor, "*batch c c"]:
        """R with R Rᵀ = covariance; see there."""
        return Moments(self.mean, self.covariance).root()

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """Draws ``[k, n, *event, c]``, each position by itself.

        Args:
            k: Number of draws.
            generator: Source of randomness; ``None`` draws from PyTorch's global one.
        """
        check_count("k", k)
        noise = probes.gaussian([k, *self.mean.shape], like=self.mean, generator=generator)
        return self.mean + self._mixed(noise.mul_(self.values.sqrt()), 1)

    def scaled(self, by: float) -> WideMoments:
        """Moments of the outputs times the number ``by``."""
        return replace(self, mean=by * self.mean, values=by**2 * self.values)

    def marginal(self) -> WideMoments:
        """These moments themselves: each position already stands alone."""
        return self

    def select(self, outputs: slice) -> WideMoments | Moments:
        """Moments of some of the outputs."""
        if self.rows is None:
            return replace(self, mean=self.mean[..., outputs], values=self.values[..., outputs])
        return Moments(self.mean, self.covariance).select(outputs)

    def _mixed(self, values: Tensor, power: int) -> Tensor:
        """E, its entries raised to a power, times vectors on the last axis."""
        if self.rows is None or self.vectors is None:
            return values
        if len(self.rows) == values.shape[-1]:
            return values @ self.vectors.pow(power).mT
        return values.index_copy(-1, self.rows, values[..., self.rows] @ self.vectors.pow(power).mT)


Outputs: TypeAlias = Moments | JointMoments | Draws | WideMoments
"""What is known of a network's outputs."""


def at_least_single(outputs: Outputs) -> Outputs:
    """The same outputs in float32, if they are in half precision, in which probabilities do not add up to 1.

    Example:
        >>> at_least_single(Moments.certain(torch.zeros(1, 2, dtype=torch.bfloat16))).mean.dtype
        torch.float32
    """
    changed = dict[str, Tensor]()
    for each in fields(outputs):
        value = getattr(outputs, each.name)
        if isinstance(value, Tensor) and value.is_floating_point():
            changed[each.name] = value.to(torch.promote_types(value.dtype, torch.float32))
    return replace(outputs, **changed)


def spread(moments: Moments | WideMoments) -> Tensor:
    """What of the moments is in proportion to the covariance: itself, or its eigenvalues."""
    return moments.values if isinstance(moments, WideMoments) else moments.covariance


def with_spread(moments: Moments | WideMoments, spread: Tensor) -> Moments | WideMoments:
    """The same mean, and in the same basis another covariance."""
    if isinstance(moments, WideMoments):
        return replace(moments, values=spread)
    return Moments(moments.mean, spread)
