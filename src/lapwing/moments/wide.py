"""What is known of outputs too many for a covariance a position: eigenvalues in one basis, a factor, or variances."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TypeAlias, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import UnsupportedError, check_bytes, check_count
from lapwing.ground.results import Shown
from lapwing.moments.marginals import GaussianMarginals, check_overflow, log_normal_covariance
from lapwing.moments.outputs import Averaged, Draws, JointMoments, Moments

MAX_BYTES = 2**30
"""Bytes that covariances made on request may take (1 GiB)."""

CHUNK = 2**24
"""Bytes of their roots made at a time (16 MiB)."""


@dataclass(frozen=True, eq=False, repr=False)
class WideMoments(Shown, GaussianMarginals):
    """Gaussian outputs of which a position has too many for a covariance, which is made only when it is asked for.

    Args:
        mean: ``[n, *event, c]``.
    """

    mean: Float[Tensor, "*batch c"]

    @property
    @abc.abstractmethod
    def variance(self) -> Float[Tensor, "*batch c"]:
        """Variance of each output."""

    @property
    @abc.abstractmethod
    def row_sums(self) -> Float[Tensor, "*batch c"]:
        """The sum of each row of the covariance: how an output varies with the sum of all."""

    @property
    @abc.abstractmethod
    def dimensions(self) -> int:
        """Columns r of the R of ``coloured``."""

    @abc.abstractmethod
    def coloured(self, noise: Float[Tensor, "r k"]) -> Float[Tensor, "*batch c k"]:
        """``R ε`` with ``R Rᵀ`` the covariance of each position, for the same k columns of noise ε at all of them."""

    @abc.abstractmethod
    def covariance_rows(self, outputs: slice) -> Float[Tensor, "*batch r c"]:
        """The rows of the covariances of some outputs, however many bytes they take."""

    @property
    def covariance(self) -> Float[Tensor, "*batch c c"]:
        """The covariance of each position.

        Raises:
            TooLargeError: If it takes more than ``MAX_BYTES``.
        """
        c = self.mean.shape[-1]
        needed = self.mean.numel() * c * self.mean.element_size()
        got = f"those of {c:,} outputs at {self.mean[..., 0].numel():,} positions, which need"
        hint = "fewer inputs at a time, or .variance or .sample(k); no link needs them"
        check_bytes("covariances", needed, MAX_BYTES, got, hint)
        return self.written.covariance

    @property
    def written(self) -> Moments:
        """The same with the covariances written down, however many bytes they take."""
        return Moments(self.mean, self.covariance_rows(slice(None)))

    def root(self) -> Float[Tensor, "*batch c r"]:
        """R with R Rᵀ = covariance; see there."""
        return Moments(self.mean, self.covariance).root()

    @abc.abstractmethod
    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """Draws ``[k, n, *event, c]``, each position by itself.

        Args:
            k: Number of draws.
            generator: Source of randomness; ``None`` draws from PyTorch's global one.
        """

    @property
    def contrast_columns(self) -> int:
        """Rows of noise that ``coloured_contrasts`` takes."""
        return self.dimensions

    @property
    def contrast_bytes(self) -> int:
        """Bytes beside its result that ``coloured_contrasts`` takes for a position."""
        return 0

    @property
    def contrast_seconds(self) -> float:
        """Seconds that ``coloured_contrasts`` takes to factorise a position: there is nothing to factorise."""
        return 0.0

    def coloured_contrasts(self, noise: Float[Tensor, "r k"]) -> Float[Tensor, "*batch c k"]:
        """See ``Moments.coloured_contrasts``; of these with the shift, which a softmax does not see."""
        return self.coloured(noise)

    @property
    def drawn_numbers(self) -> int:
        """Numbers that a draw of one position takes: as many as outputs."""
        return self.mean.shape[-1]

    def averaged(
        self, function: Callable[[Tensor], Tensor], approximation: Callable[[WideMoments], Averaged]
    ) -> Averaged:
        """See ``Normal.averaged``."""
        return approximation(self)

    def exponential(self, what: str) -> BasisMoments:
        """The moments of e^f, of each output by itself; see ``Normal.exponential``."""
        mean = self.expected_exp(what)
        variance = mean.square() * torch.expm1(self.variance)
        exponents = 2 * (self.mean + self.variance)
        return BasisMoments(mean, check_overflow(variance, f"variances of {what} exp f", exponents))

    def exponential_covariance(self, exponential: BasisMoments) -> Float[Tensor, "*batch c c"]:
        """See ``Normal.exponential_covariance``: how numbers vary together, which the moments of each leave out.

        Raises:
            TooLargeError: If it takes more than ``MAX_BYTES``.
        """
        return log_normal_covariance(exponential.mean, self.covariance)

    @property
    def compact_covariance(self) -> Tensor:
        """Numbers in which the covariance is linear: itself, unless it has a form of fewer."""
        return self.covariance

    def with_compact_covariance(self, numbers: Tensor) -> WideMoments | Moments:
        """The same mean, and the covariance of other such numbers."""
        return Moments(self.mean, numbers)

    @abc.abstractmethod
    def scaled(self, by: float) -> WideMoments:
        """Moments of the outputs times the number ``by``."""

    @abc.abstractmethod
    def widened(self, by: float) -> WideMoments:
        """The same mean, and the covariance times the number ``by``."""

    def marginal(self) -> WideMoments:
        """These moments themselves: each position already stands alone."""
        return self

    @abc.abstractmethod
    def select(self, outputs: slice) -> WideMoments | Moments:
        """Moments of some of the outputs."""

    def factored(self) -> WideMoments:
        """See ``Moments.factored``: itself, which has no matrix to decompose."""
        return self

    @abc.abstractmethod
    def at_positions(self, positions: slice) -> WideMoments:
        """Moments of some positions, counted over all axes but the last, which become one."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class BasisMoments(WideMoments):
    """Gaussian outputs ``N(mean, E diag(values) Eᵀ)`` at each position, with one orthonormal E for all of them.

    E is the identity, but for some outputs that it mixes among themselves. Variances and draws take c numbers a
    position.

    Args:
        mean: ``[n, *event, c]``.
        values: ``[n, *event, c]``, variances along the columns of E.
        rows: The outputs that E mixes.
        vectors: How: orthonormal columns.

    Example:
        >>> moments = BasisMoments(torch.zeros(1, 3), torch.tensor([[1.0, 4.0, 9.0]]))
        >>> moments.std, moments.sample(16).shape
        (tensor([[1., 2., 3.]]), torch.Size([16, 1, 3]))
    """

    values: Float[Tensor, "*batch c"]
    rows: Int[Tensor, " k"] | None = None
    vectors: Float[Tensor, "k k"] | None = None

    @property
    def variance(self) -> Float[Tensor, "*batch c"]:
        """Variance of each output."""
        return self._mixed(self.values, 2)

    @property
    def row_sums(self) -> Float[Tensor, "*batch c"]:
        """``E diag(values) Eᵀ 1``."""
        sums = self.values.new_ones(self.values.shape[-1])
        if self.rows is not None and self.vectors is not None:
            sums = sums.index_copy(0, self.rows, self.vectors.sum(0))
        return self._mixed(self.values * sums, 1)

    @property
    def dimensions(self) -> int:
        """As many as outputs."""
        return self.mean.shape[-1]

    def coloured(self, noise: Float[Tensor, "r k"]) -> Float[Tensor, "*batch c k"]:
        """``E diag(√values) ε``."""
        along = self.values.sqrt()[..., None] * noise
        if self.rows is None or self.vectors is None:
            return along
        return along.index_copy(-2, self.rows, self.vectors @ along[..., self.rows, :])

    def covariance_rows(self, outputs: slice) -> Float[Tensor, "*batch r c"]:
        """See ``WideMoments.covariance_rows``."""
        c = self.mean.shape[-1]
        device = self.mean.device
        some = torch.arange(c, device=device)[outputs]
        found = self.values.new_zeros(*self.values.shape[:-1], len(some), c)
        found[..., torch.arange(len(some), device=device), some] = self.values[..., some]
        if self.rows is None or self.vectors is None:
            return found
        here, place = (some[:, None] == self.rows).nonzero().unbind(1)
        mixed = (self.vectors[place] * self.values[..., None, self.rows]) @ self.vectors.mT
        found[..., here[:, None], self.rows] = mixed
        return found

    @property
    def written(self) -> Moments:
        """See ``WideMoments.written``."""
        c = self.mean.shape[-1]
        roots = self.values.sqrt().reshape(-1, c)
        each = max(1, CHUNK // (c**2 * roots.element_size()))

        def squared(root: Tensor) -> Tensor:
            return root.mT @ root

        parts = [squared(self._mixed(torch.diag_embed(some), 1)) for some in roots.split(each)]
        return Moments(self.mean, torch.cat(parts).view(*self.mean.shape, c))

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """See ``WideMoments.sample``."""
        check_count("k", k)
        noise = probes.gaussian([k, *self.mean.shape], like=self.mean, generator=generator)
        return self.mean + self._mixed(noise.mul_(self.values.sqrt()), 1)

    def scaled(self, by: float) -> BasisMoments:
        """Moments of the outputs times the number ``by``."""
        return replace(self, mean=by * self.mean, values=by**2 * self.values)

    def widened(self, by: float) -> BasisMoments:
        """The same mean, and the covariance times the number ``by``."""
        return replace(self, values=by * self.values)

    @property
    def compact_covariance(self) -> Float[Tensor, "*batch c"]:
        """Numbers in which the covariance is linear: its eigenvalues in the basis."""
        return self.values

    def with_compact_covariance(self, numbers: Float[Tensor, "*batch c"]) -> BasisMoments:
        """The same mean, and in the same basis other eigenvalues."""
        return replace(self, values=numbers)

    def select(self, outputs: slice) -> WideMoments | Moments:
        """Moments of some of the outputs."""
        if self.rows is None:
            return replace(self, mean=self.mean[..., outputs], values=self.values[..., outputs])
        return Moments(self.mean[..., outputs], self.covariance_rows(outputs)[..., outputs])

    def at_positions(self, positions: slice) -> BasisMoments:
        """See ``WideMoments.at_positions``."""
        return replace(self, mean=self.mean.flatten(0, -2)[positions], values=self.values.flatten(0, -2)[positions])

    def _mixed(self, values: Tensor, power: int) -> Tensor:
        """E, its entries raised to a power, times vectors on the last axis."""
        if self.rows is None or self.vectors is None:
            return values
        if len(self.rows) == values.shape[-1]:
            return values @ self.vectors.pow(power).mT
        return values.index_copy(-1, self.rows, values[..., self.rows] @ self.vectors.pow(power).mT)


@final
@dataclass(frozen=True, eq=False, repr=False)
class FactorMoments(WideMoments):
    """Gaussian outputs ``N(mean, F Fᵀ)`` at each position, with fewer columns of F than outputs.

    Variances and draws take c r numbers a position.

    Args:
        mean: ``[n, *event, c]``.
        factor: F, ``[n, *event, c, r]``.

    Example:
        >>> moments = FactorMoments(torch.zeros(1, 3), torch.tensor([[[1.0], [2.0], [3.0]]]))
        >>> moments.std, moments.row_sums
        (tensor([[1., 2., 3.]]), tensor([[ 6., 12., 18.]]))
    """

    factor: Float[Tensor, "*batch c r"]

    @property
    def variance(self) -> Float[Tensor, "*batch c"]:
        """Variance of each output."""
        return torch.linalg.vector_norm(self.factor, dim=-1).square()

    @property
    def row_sums(self) -> Float[Tensor, "*batch c"]:
        """``F Fᵀ 1``."""
        return (self.factor @ self.factor.sum(-2, keepdim=True).mT).squeeze(-1)

    @property
    def dimensions(self) -> int:
        """Columns of F."""
        return self.factor.shape[-1]

    def coloured(self, noise: Float[Tensor, "r k"]) -> Float[Tensor, "*batch c k"]:
        """``F ε``."""
        return self.factor @ noise

    def covariance_rows(self, outputs: slice) -> Float[Tensor, "*batch r c"]:
        """See ``WideMoments.covariance_rows``."""
        return self.factor[..., outputs, :] @ self.factor.mT

    def root(self) -> Float[Tensor, "*batch c r"]:
        """F."""
        return self.factor

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """See ``WideMoments.sample``."""
        check_count("k", k)
        shape = [k, *self.factor.shape[:-2], self.dimensions]
        noise = probes.gaussian(shape, like=self.mean, generator=generator)
        return self.mean + torch.einsum("...cr,k...r->k...c", self.factor, noise)

    def scaled(self, by: float) -> FactorMoments:
        """Moments of the outputs times the number ``by``."""
        return FactorMoments(by * self.mean, by * self.factor)

    def widened(self, by: float) -> FactorMoments:
        """The same mean, and the covariance times the number ``by``."""
        return FactorMoments(self.mean, by**0.5 * self.factor)

    def select(self, outputs: slice) -> FactorMoments:
        """Moments of some of the outputs."""
        return FactorMoments(self.mean[..., outputs], self.factor[..., outputs, :])

    def at_positions(self, positions: slice) -> FactorMoments:
        """See ``WideMoments.at_positions``."""
        return FactorMoments(self.mean.flatten(0, -2)[positions], self.factor.flatten(0, -3)[positions])


@final
@dataclass(frozen=True, eq=False, repr=False)
class VarianceMoments(WideMoments):
    """Gaussian outputs whose variances alone are known: two numbers an output, and not how outputs vary together.

    Covariances, draws, and links that take either are refused.

    Args:
        mean: ``[n, *event, c]``.
        variances: ``[n, *event, c]``.

    Example:
        >>> moments = VarianceMoments(torch.zeros(1, 3), torch.tensor([[1.0, 4.0, 9.0]]))
        >>> moments.std
        tensor([[1., 2., 3.]])
    """

    variances: Float[Tensor, "*batch c"]

    @property
    def variance(self) -> Float[Tensor, "*batch c"]:
        """Variance of each output."""
        return self.variances

    @property
    def row_sums(self) -> Float[Tensor, "*batch c"]:
        """Refused: see ``VarianceMoments``."""
        raise self._refused("sums of the rows of a covariance")

    @property
    def dimensions(self) -> int:
        """Refused: see ``VarianceMoments``."""
        raise self._refused("roots of a covariance")

    def coloured(self, noise: Float[Tensor, "r k"]) -> Float[Tensor, "*batch c k"]:
        """Refused: see ``VarianceMoments``."""
        raise self._refused("roots of a covariance")

    def covariance_rows(self, outputs: slice) -> Float[Tensor, "*batch r c"]:
        """Refused: see ``VarianceMoments``."""
        raise self._refused("covariances")

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """Refused: see ``VarianceMoments``."""
        raise self._refused("draws")

    def scaled(self, by: float) -> VarianceMoments:
        """Moments of the outputs times the number ``by``."""
        return VarianceMoments(by * self.mean, by**2 * self.variances)

    def widened(self, by: float) -> VarianceMoments:
        """The same mean, and the variances times the number ``by``."""
        return VarianceMoments(self.mean, by * self.variances)

    def select(self, outputs: slice) -> VarianceMoments:
        """Moments of some of the outputs."""
        return VarianceMoments(self.mean[..., outputs], self.variances[..., outputs])

    def at_positions(self, positions: slice) -> VarianceMoments:
        """See ``WideMoments.at_positions``."""
        return VarianceMoments(self.mean.flatten(0, -2)[positions], self.variances.flatten(0, -2)[positions])

    def _refused(self, what: str) -> UnsupportedError:
        expected = f"outputs of which it is known how they vary together, for {what}"
        got = f"the variances alone of {self.mean.numel():,} outputs, which is what link 'probit' takes"
        return UnsupportedError(expected, got, "fewer inputs at a time")


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
