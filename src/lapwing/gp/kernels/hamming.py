"""The kernel of categories: how many columns differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.gp.kernels.base import Entries, FeatureMap, Kernel, Positive, check_dimensions, like
from lapwing.ground import probes
from lapwing.ground.precision import wide

PRIME = 2**31 - 1
"""Categories are hashed to numbers below it."""


@final
@dataclass(frozen=True)
class Hamming(Kernel):
    """``exp(-Σ_j [x_j ≠ x'_j] / ψ_j)`` of categories, which are alike or not.

    It is the squared exponential kernel of columns of zeros and ones, one a category, with length-scales ``√ψ``. A
    category may have any number; one that the data do not have is as far from each of theirs as these are from each
    other. Whole numbers are told apart exactly, others as float32 has them, so that 0.1 in float32 and 0.1 in float64
    are one category.

    Args:
        lengthscale: ψ, in columns that differ: one for all columns, or one a column. A long one says that its
            categories hardly matter.

    Example:
        >>> Hamming(2.0)(torch.tensor([[0.0, 3.0]]), torch.tensor([[0.0, 3.0], [0.0, 1.0]]))
        tensor([[1.0000, 0.6065]])
    """

    names = ("lengthscale",)
    lengthscale: Positive = 1.0

    def between(self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"]) -> Entries:
        """See ``Kernel``."""
        check_dimensions(self, a, b)
        rates = self._rates(a)
        ours = categories_of(a)
        theirs = categories_of(b)
        return lambda i, j: torch.exp(-weighted_differences(ours[i], theirs[j], rates))

    def diagonal(self, x: Float[Tensor, "n p"]) -> Float[Tensor, " n"]:
        """Ones."""
        return x.new_ones(x.shape[0])

    def categorical(self, columns: int) -> set[int]:
        """All of them."""
        return set(range(columns))

    def gradient(
        self, a: Float[Tensor, "n p"], b: Float[Tensor, "m p"], weight: Float[Tensor, "n m"]
    ) -> Float[Tensor, " h"]:
        """``Σ_ij W_ij k [x_j ≠ x'_j] / ψ_j`` for each column."""
        rates = self._rates(a)
        weighted = weight * self(a, b)
        ours = categories_of(a)
        theirs = categories_of(b)
        slopes = list[Tensor]()
        for column, rate in enumerate(rates):
            differs = ours[:, column, None] != theirs[:, column]
            slopes.append(rate * (weighted * differs).sum())
        found = wide(torch.stack(slopes)).cpu()
        return found if torch.as_tensor(self.lengthscale).numel() == len(found) else found.sum()[None]

    def features(self, count: int, x: Float[Tensor, "n p"], generator: torch.Generator) -> FeatureMap:
        """Products of random signs of the categories; each leaves out a column with probability ``exp(-1 / ψ_j)``.

        The sign of a category is whether a hash of its number is small: of two categories these are independent
        (Carter & Wegman 1979), so that those never seen need no signs drawn in advance.
        """
        size = [x.shape[1], count]
        kept = probes.uniform(size, like=wide(x), generator=generator) > torch.exp(-self._rates(wide(x)))[:, None]
        factors = torch.randint(PRIME, size, generator=generator).to(kept.device)
        offsets = torch.randint(PRIME, size, generator=generator).to(kept.device)

        def draw(inputs: Tensor) -> Tensor:
            product = inputs.new_full((len(inputs), count), count**-0.5)
            for column, numbers in enumerate(numbers_of(inputs).mT):
                hashes = (numbers[:, None] * factors[column]).add_(offsets[column]).remainder_(PRIME)
                turned = (hashes < PRIME // 2) & kept[column]
                product *= torch.where(turned, -1.0, 1.0).to(product)
            return product

        return draw

    def _rates(self, x: Float[Tensor, "n p"]) -> Float[Tensor, " p"]:
        """``1 / ψ`` of each column."""
        return (1 / like(self.lengthscale, x)).expand(x.shape[1])


def weighted_differences(
    a: Float[Tensor, "n p"], b: Float[Tensor, "m p"], rates: Float[Tensor, " p"]
) -> Float[Tensor, "n m"]:
    """``Σ_k w_k [a_ik ≠ b_jk]``, a column at a time.

    Args:
        a: Rows of categories.
        b: Others.
        rates: w.
    """
    total = a.new_zeros(a.shape[0], b.shape[0])
    for column, rate in enumerate(rates):
        total = total + rate * (a[:, column, None] != b[:, column])
    return total


def categories_of(x: Float[Tensor, "n p"]) -> Float[Tensor, "n p"]:
    """The numbers by which categories are told apart: whole ones as they are, others rounded to float32.

    Args:
        x: Numbers of any dtype.
    """
    return torch.where(x == x.round(), x, x.to(torch.float32).to(x))


def numbers_of(x: Float[Tensor, "n p"]) -> Int[Tensor, "n p"]:
    """Whole numbers from 0 to below ``PRIME`` that tell categories apart: their digits, folded.

    Args:
        x: Numbers of any dtype.
    """
    positive_zero = wide(categories_of(x.detach())) + 0.0
    return positive_zero.view(torch.int64) % PRIME
