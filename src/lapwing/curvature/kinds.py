"""Which matrix: the directions pulled back through the network, whose outer products are added up over the data."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from lapwing.ground import probes
from lapwing.ground.errors import UnsupportedError, check_count, check_positive
from lapwing.likelihoods import IGNORED, Likelihood
from lapwing.likelihoods.base import COLUMNS, by_position

Outputs: TypeAlias = Float[Tensor, "n *event c"]

Blocks: TypeAlias = Iterator[Float[Tensor, "k n *event c"]]

NUMBERS = 2**24
"""Numbers of the draws that are made at a time, where one of a chunk has fewer."""


@dataclass(frozen=True)
class Curvature(abc.ABC):
    """A matrix of the form ``sum_n sum_k (J_nᵀ u_nk)(J_nᵀ u_nk)ᵀ``, known by its cotangents u."""

    @abc.abstractmethod
    def cotangents(self, likelihood: Likelihood, f: Outputs, y: Tensor, generator: Generator | None = None) -> Blocks:
        """The cotangents u, in blocks.

        Args:
            likelihood: The likelihood.
            f: Canonical outputs.
            y: Canonical targets.
            generator: Source of randomness, where the curvature needs one.

        Returns:
            Blocks of at most ``COLUMNS`` cotangents, made as they are asked for.

        Raises:
            UnsupportedError: If the curvature has none.
        """

    def width(self, outputs: int) -> int:
        """Cotangents in a block for a network with ``outputs`` outputs c: here one."""
        return 1

    def number(self, outputs: int) -> int:
        """Most cotangents of an example with so many outputs, over all its positions: here one."""
        return 1


@final
@dataclass(frozen=True)
class GGN(Curvature):
    """The generalised Gauss-Newton matrix ``sum_n J_nᵀ B_n J_n`` with the exact output Hessian B = S Sᵀ.

    The cotangents are the columns of S: as many as B has rank, c or for classes c - 1, times the positions of an event.
    It equals the Fisher information for the exponential families here (Immer et al. 2021, equation 4; Kunstner et al.
    2019).

    Args:
        exact: Whether every column is pulled back whatever that takes. Else ``KFAC``, ``Diagonal`` and ``Auto`` take
            draws in their place where outputs are many, which they log: see ``SampledGGN`` and ``MCFisher``.

    Example:
        >>> from lapwing.likelihoods import Gaussian
        >>> [block.shape for block in GGN().cotangents(Gaussian(), torch.zeros(5, 2), torch.zeros(5, 2))]
        [torch.Size([2, 5, 2])]
    """

    exact: bool = False

    def cotangents(self, likelihood: Likelihood, f: Outputs, y: Tensor, generator: Generator | None = None) -> Blocks:
        """Columns of S, one event position after another."""
        columns = likelihood.thin_root(f, y).movedim(-1, 0)
        yield from by_position(columns)

    def width(self, outputs: int) -> int:
        """All of them, up to ``COLUMNS``."""
        return min(outputs, COLUMNS)

    def number(self, outputs: int) -> int:
        """One an output; for classes one less at every position."""
        return outputs


@dataclass(frozen=True)
class Drawn(Curvature):
    """A curvature by Monte Carlo: the mean over cotangents drawn for each example.

    Args:
        samples: Draws an example.

    Raises:
        ConfigError: If there are none.
    """

    samples: int = 1

    def __post_init__(self) -> None:
        check_count("samples", self.samples)

    @final
    def cotangents(self, likelihood: Likelihood, f: Outputs, y: Tensor, generator: Generator | None = None) -> Blocks:
        """Draws, so many at a time."""
        most = max(1, min(COLUMNS, NUMBERS // max(1, f.numel())))
        sizes = [min(most, self.samples - start) for start in range(0, self.samples, most)]
        for draws in self._draws(likelihood, f, y, sizes, generator):
            yield draws / self.samples**0.5

    @abc.abstractmethod
    def _draws(
        self, likelihood: Likelihood, f: Tensor, y: Tensor, sizes: list[int], generator: Generator | None
    ) -> Blocks:
        """So many draws, block by block."""

    @final
    def width(self, outputs: int) -> int:
        """One a sample, up to ``COLUMNS``."""
        return min(self.samples, COLUMNS)

    @final
    def number(self, outputs: int) -> int:
        """One a sample."""
        return self.samples


@final
@dataclass(frozen=True)
class MCFisher(Drawn):
    """The Fisher information by Monte Carlo: scores at labels drawn from the model, unbiased for the GGN.

    One backward pass a sample whatever the number of outputs or positions: the choice for many classes and for tokens.

    Args:
        samples: Labels drawn an example.
    """

    def _draws(
        self, likelihood: Likelihood, f: Tensor, y: Tensor, sizes: list[int], generator: Generator | None
    ) -> Blocks:
        for size in sizes:
            draws = [likelihood.draw(f, generator=generator) for _ in range(size)]
            scores = torch.stack([likelihood.score(f, keep_ignored(draw, y)) for draw in draws])
            yield scores / likelihood.weight**0.5


@final
@dataclass(frozen=True)
class SampledGGN(Drawn):
    """``sum_n J_nᵀ ε εᵀ J_n`` with ``ε ~ N(0, B_n)``, unbiased for ``sum_n J_nᵀ B_n J_n`` example by example.

    Its diagonal adds up the squares of every example, ``sum_n (J_nᵀ ε_n)²``, with the mean of ``(sum_n J_nᵀ ε_n)²``
    and less variance (Antorán 2024, section 6.2.2). Unlike scores at drawn labels (``MCFisher``) every draw says
    something of a confident example, whose other labels are hardly ever drawn.
    """

    def _draws(
        self, likelihood: Likelihood, f: Tensor, y: Tensor, sizes: list[int], generator: Generator | None
    ) -> Blocks:
        if likelihood.hessian_entries(f[:0], y[:0]) is None:
            root = likelihood.root(f, y)
            for size in sizes:
                noise = probes.gaussian((size, *root.shape[:-2], root.shape[-1], 1), like=root, generator=generator)
                yield (root @ noise).squeeze(-1)
            return
        root, outer = _diagonal_and_outer(likelihood, f, y)
        projection = None if outer is None else (outer / root).nan_to_num(0.0)
        for size in sizes:
            noise = probes.gaussian((size, *f.shape), like=f, generator=generator)
            draws = root * noise
            if outer is not None and projection is not None:
                draws -= outer * (projection * noise).sum(-1, keepdim=True)
            yield draws


def _diagonal_and_outer(likelihood: Likelihood, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
    """The root of a diagonal, and v where B is what v vᵀ leaves of it: p, for the diagonal of p."""
    entries = likelihood.hessian_entries(f, y)
    assert entries is not None
    diagonal, outer = entries
    if outer is None:
        return diagonal.sqrt().to(f), None
    return (diagonal + outer.square()).sqrt().to(f), outer.to(f)


@final
@dataclass(frozen=True)
class EmpiricalFisher(Curvature):
    """The empirical Fisher ``sum_n ∇_n ∇_nᵀ`` of the gradients at the data's own labels.

    One backward pass. It is not the Fisher information and vanishes where the network fits its data (Kunstner et al.
    2019): a baseline. It grows with the square of the noise precision, where B grows with the precision: its noise is
    refused to be tuned.
    """

    def cotangents(self, likelihood: Likelihood, f: Outputs, y: Tensor, generator: Generator | None = None) -> Blocks:
        """The score at the labels."""
        yield likelihood.score(f, y).unsqueeze(0) / likelihood.weight**0.5


@final
@dataclass(frozen=True)
class Hessian(Curvature):
    """The exact Hessian of the negative log likelihood: all of it in ``Full``, its positive part in ``LowRank``.

    It is positive definite only at a strict minimum: elsewhere a fit of ``Full(view="weights")`` is refused, naming the
    smallest eigenvalue, unless it is damped on request.

    Args:
        damping: Added to every eigenvalue, in 1 / weight²: as if the prior were that much more precise.

    Raises:
        ConfigError: If it is negative, or no number.
    """

    damping: float = 0.0

    def __post_init__(self) -> None:
        if self.damping != 0:
            check_positive("damping", self.damping, "1.0")

    def cotangents(self, likelihood: Likelihood, f: Outputs, y: Tensor, generator: Generator | None = None) -> Blocks:
        """There are none: the Hessian is not a sum of outer products."""
        raise UnsupportedError(
            "a curvature that is a sum of outer products", "the exact Hessian", "Full(view='weights'), or GGN()"
        )


def keep_ignored(draw: Tensor, targets: Tensor) -> Tensor:
    """Drawn labels, ignored where the data's own are."""
    return draw if draw.is_floating_point() else torch.where(targets == IGNORED, targets, draw)
