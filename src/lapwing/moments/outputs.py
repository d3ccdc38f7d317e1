"""What is known of a network's outputs: mean and covariance, position by position or of all together, or draws."""

from __future__ import annotations

import abc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import ClassVar, TypeAlias, TypeVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import ShapeError, check_count
from lapwing.ground.precision import wide, wide_like
from lapwing.ground.results import Shown
from lapwing.moments.contrasts import FACTORISED, RATE, contrast_root
from lapwing.moments.marginals import GaussianMarginals, check_overflow, log_normal_covariance
from lapwing.moments.roots import covariance_root
from lapwing.moments.rounding import clamp_rounding

Averaged: TypeAlias = tuple[Tensor, Tensor | None]
"""An average, and its standard error where it came from draws."""

N = TypeVar("N", bound="Normal")


@contextmanager
def graph_kept(source: Tensor) -> Generator[None]:
    """What is computed from a tensor with a graph has one too, though it is first looked at where none is asked for."""
    if not source.requires_grad:
        yield
        return
    with torch.inference_mode(False), torch.enable_grad():
        yield


@dataclass(frozen=True, eq=False, repr=False)
class Normal(Shown, GaussianMarginals):
    """Gaussian outputs N(mean, covariance). The covariance may be singular: it is never inverted.

    Args:
        mean: ``[n, *event, c]``.
        covariance: As the kind has it.
        factor: ``[n, *event, c, r]`` with covariance = factor factorᵀ over the last axis, where it is known.

    Raises:
        ShapeError: If the shapes do not belong together.
    """

    mean: Tensor
    covariance: Tensor
    factor: Tensor | None = None

    @property
    def variance(self) -> Float[Tensor, "*batch c"]:
        """Variance of each output, ``[n, *event, c]``; negative rounding errors become 0.

        Raises:
            NumericalError: If one is negative beyond rounding, or NaN.
        """
        return self._variance

    @cached_property
    def _variance(self) -> Float[Tensor, "*batch c"]:
        with graph_kept(self.covariance):
            return clamp_rounding(self.matrix.diagonal(dim1=-2, dim2=-1), "variance").reshape(self.mean.shape)

    def root(self) -> Float[Tensor, "*batch c r"]:
        """R ``[n, *event, c, r]`` with R Rᵀ = covariance: a factor with no more columns than rows, or by eigenvalues.

        Raises:
            NumericalError: If the covariance is indefinite beyond rounding, or not finite.

        Cost: the first time the cube of the rows that depend on one another, in float64.
        """
        return self._root

    def sample(self, k: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """Draws mean + R ε, ``[k, n, *event, c]``: of ``JointMoments`` each is one coherent function.

        Args:
            k: Number of draws.
            generator: Source of randomness; ``None`` draws from PyTorch's global one.
        """
        check_count("k", k)
        root = self.root()
        root = root.reshape(*self.matrix.shape[:-1], root.shape[-1])
        noise = probes.gaussian([k, *root.shape[:-2], root.shape[-1]], like=self.mean, generator=generator)
        return self.mean + torch.einsum("...cr,k...r->k...c", root, noise).reshape(k, *self.mean.shape)

    def scaled(self: N, by: float) -> N:
        """Moments of the outputs times the number ``by``."""
        factor = None if self.factor is None else by * self.factor
        return replace(self, mean=by * self.mean, covariance=by**2 * self.covariance, factor=factor)

    @abc.abstractmethod
    def marginal(self) -> Moments:
        """The moments of each position on its own."""

    def averaged(self, function: Callable[[Tensor], Tensor], approximation: Callable[[Moments], Averaged]) -> Averaged:
        """``E function(f)`` with its standard error, which of Gaussian f an approximation finds from their moments.

        Args:
            function: Of outputs ``[k, n, *event, c]``, elementwise or over the last axis.
            approximation: What takes the moments of each position for the average.
        """
        return approximation(self.marginal())

    def exponential(self: N, what: str) -> N:
        """The moments of e^f; ``what`` names e^f where it overflows.

        Raises:
            NumericalError: If a mean or a variance overflows.
        """
        mean = self.expected_exp(what)
        matrix = log_normal_covariance(mean.reshape(self.matrix.shape[:-1]), self.matrix)
        exponents = 2 * (self.mean + self.variance)
        covariance = check_overflow(matrix, f"variances of {what} exp f", exponents).reshape(self.covariance.shape)
        return replace(self, mean=mean, covariance=covariance, factor=None)

    def exponential_covariance(self, exponential: Moments | JointMoments) -> Tensor:
        """The covariance of e^f, of the shape of that of f; its moments are those that ``exponential`` gives."""
        return exponential.covariance

    @property
    def matrix(self) -> Tensor:
        """The covariance as matrices of rows that depend on one another."""
        joint = self.covariance.ndim == 2 * self.mean.ndim
        return self.covariance.reshape(self.mean.numel(), self.mean.numel()) if joint else self.covariance

    @cached_property
    def _root(self) -> Tensor:
        if self.factor is not None and self.factor.shape[-1] <= self.matrix.shape[-1]:
            return self.factor
        _ = self.variance  # refuses what is no variance
        with graph_kept(self.covariance):
            found = covariance_root(self.matrix) if self.covariance.requires_grad else self._root_by_eigenvalues
            root = found.to(self.covariance)
            return root.reshape(*self.mean.shape, root.shape[-1])

    @property
    def _root_by_eigenvalues(self) -> Tensor:
        """Without a derivative where eigenvalues coincide."""
        double = wide(self.matrix)
        values, vectors = torch.linalg.eigh(0.5 * (double + double.mT))
        return vectors * clamp_rounding(values, "eigenvalue", self.covariance.dtype).sqrt().unsqueeze(-2)

    def _check(self, covariance: tuple[int, ...], expected: str, hint: str) -> None:
        shape = tuple(self.mean.shape)
        factor = self.factor
        if len(shape) < 2 or tuple(self.covariance.shape) != covariance:
            raise ShapeError(expected, f"shapes {list(shape)} and {list(self.covariance.shape)}", hint)
        if factor is not None and tuple(factor.shape[:-1]) != shape:
            hint = "a factor with covariance = factor @ factor.mT"
            raise ShapeError(f"a factor of shape {[*shape, 'r']}", f"shape {list(factor.shape)}", hint)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Moments(Normal):
    """Gaussian outputs, each position on its own, with the covariance ``[n, *event, c, c]``; see ``Normal``.

    Example:
        >>> moments = Moments(torch.zeros(1, 2), 4 * torch.eye(2).expand(1, 2, 2))
        >>> moments.std, moments.sample(16).shape
        (tensor([[2., 2.]]), torch.Size([16, 1, 2]))
    """

    def __post_init__(self) -> None:
        self._check(
            (*self.mean.shape, *self.mean.shape[-1:]),
            "a mean [n, *event, c] and a covariance [n, *event, c, c]",
            "JointMoments for a covariance over the whole batch [n, c, n, c]",
        )

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

    def marginal(self) -> Moments:
        """These moments themselves: each position already stands alone."""
        return self

    @property
    def row_sums(self) -> Float[Tensor, "*batch c"]:
        """The sum of each row of the covariance: how an output varies with the sum of all."""
        return self.covariance.sum(-1)

    def covariance_rows(self, outputs: slice) -> Float[Tensor, "*batch r c"]:
        """The rows of the covariances of some outputs."""
        return 0.5 * (self.covariance[..., outputs, :] + self.covariance[..., outputs].mT)

    @property
    def compact_covariance(self) -> Float[Tensor, "*batch c c"]:
        """Numbers in which the covariance is linear: itself."""
        return self.covariance

    def with_compact_covariance(self, numbers: Float[Tensor, "*batch c c"]) -> Moments:
        """The same mean, and the covariance of other such numbers."""
        return Moments(self.mean, numbers)

    @property
    def contrast_columns(self) -> int:
        """Rows of noise that ``coloured_contrasts`` takes."""
        return self.mean.shape[-1] - 1

    @property
    def contrast_bytes(self) -> int:
        """Bytes beside its result that ``coloured_contrasts`` takes for a position."""
        return 5 * self.mean.shape[-1] ** 2 * 8

    @property
    def contrast_seconds(self) -> float:
        """Seconds that ``coloured_contrasts`` takes for a position, on one core."""
        return FACTORISED * self.mean.shape[-1] ** 3 / RATE

    def coloured_contrasts(self, noise: Float[Tensor, "r k"]) -> Float[Tensor, "*batch c k"]:
        """``R ε`` with ``R Rᵀ`` the covariance without a shift that all outputs share, k columns of noise ε."""
        root = contrast_root(self.covariance).to(noise)
        return (root.flatten(0, -2) @ noise).view(*self.mean.shape, noise.shape[-1])

    @property
    def drawn_numbers(self) -> int:
        """Numbers that a draw of one position takes: as many as outputs, or as columns of its root."""
        return max(self.mean.shape[-1], self.root().shape[-1])

    def factored(self) -> Moments:
        """The same with a root whose derivatives are finite also where eigenvalues coincide: ``covariance_root``."""
        if self.factor is not None and self.factor.shape[-1] <= self.mean.shape[-1]:
            return self
        _ = self.variance  # refuses what is no variance
        return replace(self, factor=covariance_root(self.covariance).to(self.covariance))

    def at_positions(self, positions: slice) -> Moments:
        """Moments of some positions, counted over all axes but the last, which become one."""
        return Moments(self.mean.flatten(0, -2)[positions], self.covariance.flatten(0, -3)[positions])

    def widened(self, by: float) -> Moments:
        """The same mean, and the covariance times the number ``by``."""
        factor = None if self.factor is None else by**0.5 * self.factor
        return replace(self, covariance=by * self.covariance, factor=factor)

    def select(self, outputs: slice) -> Moments:
        """Moments of some of the outputs.

        Args:
            outputs: Which of the c to keep.
        """
        factor = None if self.factor is None else self.factor[..., outputs, :]
        return Moments(self.mean[..., outputs], self.covariance[..., outputs, outputs], factor)


@final
@dataclass(frozen=True, eq=False, repr=False)
class JointMoments(Normal):
    """Gaussian outputs, all positions of the batch together: covariance ``[n, *event, c, n, *event, c]``.

    Example:
        >>> moments = JointMoments(torch.zeros(2, 1), torch.ones(2, 1, 2, 1))
        >>> a, b = moments.sample(3).squeeze(-1).unbind(1)
        >>> torch.allclose(a, b)
        True
    """

    def __post_init__(self) -> None:
        self._check(
            (*self.mean.shape, *self.mean.shape),
            "a mean [n, c] and a joint covariance [n, c, n, c]",
            "Moments for one covariance a position [n, c, c]",
        )

    def marginal(self) -> Moments:
        """The moments of each position on its own."""
        positions = prod(self.mean.shape[:-1])
        c = self.mean.shape[-1]
        blocks = self.covariance.reshape(positions, c, positions, c).diagonal(dim1=0, dim2=2)
        return Moments(self.mean, blocks.movedim(-1, 0).reshape(*self.mean.shape, c), self.factor)

    def select(self, outputs: slice) -> JointMoments:
        """Moments of some of the outputs; see ``Moments.select``."""
        factor = None if self.factor is None else self.factor[..., outputs, :]
        rows = self.covariance[..., outputs].movedim(self.mean.ndim - 1, -1)[..., outputs]
        return JointMoments(self.mean[..., outputs], rows.movedim(-1, self.mean.ndim - 1), factor)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Draws(Shown):
    """Outputs known by draws, such as those of networks whose weights were drawn.

    Moments are estimated from the draws (the covariance divided by s - 1; 0 for a single draw).

    Args:
        values: ``[s, n, *event, c]``, draw s of the whole batch together.
        complete: Whether there are no others, as of the members of an ensemble: they stand for themselves alone, the
            covariance is divided by s, and averages have no standard error.

    Raises:
        ShapeError: If there is no draw or no output axis.

    Example:
        >>> Draws(torch.tensor([[[1.0]], [[3.0]]])).std
        tensor([[1.4142]])
    """

    sampled: ClassVar[bool] = True
    values: Tensor
    complete: bool = field(default=False, repr=False)

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
        with graph_kept(self.values):
            return self.values.mean(0)

    @cached_property
    def covariance(self) -> Float[Tensor, "*batch c c"]:
        """Covariance of each position over the draws, ``[n, *event, c, c]``."""
        with graph_kept(self.values):
            return self.factor @ self.factor.mT

    @cached_property
    def factor(self) -> Float[Tensor, "*batch c s"]:
        """Centred draws over √(s - 1), ``[n, *event, c, s]``; over √s where they are complete."""
        s = self.values.shape[0]
        divisor = s if self.complete else max(s - 1, 1)
        with graph_kept(self.values):
            return (self.values - self.mean).movedim(0, -1) / divisor**0.5

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

    def averaged(self, function: Callable[[Tensor], Tensor], approximation: Callable[[Moments], Averaged]) -> Averaged:
        """``E function(f)`` over the draws, with its standard error if there are several; see ``Normal.averaged``."""
        values = function(self.values)
        if len(values) == 1 or self.complete:
            return values.mean(0), None
        return values.mean(0), values.std(0) / len(values) ** 0.5

    def draws(self, samples: int, *, generator: torch.Generator | None = None) -> Float[Tensor, "k *batch c"]:
        """All the draws there are; see ``Normal.draws``."""
        return self.values

    def quantile(self, probability: float) -> Float[Tensor, "*batch c"]:
        """Quantile of each output over the draws, ``[n, *event, c]``."""
        return torch.quantile(self.values, probability, dim=0)

    def node_weights(self) -> Float[Tensor, " nodes"]:
        """See ``Normal.node_weights``: alike for every draw."""
        count = len(self.values)
        return torch.full((count,), 1 / count, **wide_like(self.values))

    def nodes(self, some: Int[Tensor, " m"]) -> Float[Tensor, "nodes m"]:
        """See ``Normal.nodes``: the draws themselves."""
        return wide(self.values.flatten(1)[:, some])

    def components(self) -> tuple[Float[Tensor, "k m"], Float[Tensor, "k m"]]:
        """See ``Normal.components``: the draws themselves, without variance."""
        draws = wide(self.values).flatten(1)
        return draws, torch.zeros_like(draws)

    def expected_exp(self, what: str) -> Float[Tensor, "*batch c"]:
        """See ``Normal.expected_exp``."""
        return check_overflow(self.values.exp().mean(0), f"{what} exp f", self.values)

    def exponential(self, what: str) -> Draws:
        """Draws of e^f; see ``Normal.exponential``."""
        found = replace(self, values=self.values.exp())
        check_overflow(found.mean, f"{what} exp f", self.values)
        check_overflow(found.covariance, f"variances of {what} exp f", 2 * self.values)
        return found

    def exponential_covariance(self, exponential: Draws) -> Tensor:
        """See ``Normal.exponential_covariance``."""
        return exponential.covariance

    def scaled(self, by: float) -> Draws:
        """Draws of the outputs times a number; see ``Normal.scaled``."""
        return replace(self, values=by * self.values)

    def marginal(self) -> Moments:
        """The moments of each position on its own."""
        return Moments(self.mean, self.covariance, self.factor)

    def select(self, outputs: slice) -> Draws:
        """Draws of some of the outputs; see ``Moments.select``."""
        return replace(self, values=self.values[..., outputs])
