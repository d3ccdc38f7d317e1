"""The curvature that the data add up to, as solvers see it: by products, by its root, in pieces."""

from __future__ import annotations

import abc
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground import probes
from lapwing.linalg import Operator
from lapwing.linalg.operators.base import unit_vectors
from lapwing.linear.model import LinearModel


class PSDOperator(Operator):
    """A positive semi-definite ``G = R Rᵀ``, a sum over the data."""

    @property
    @abc.abstractmethod
    def root(self) -> Operator:
        """R: standard normal noise ε has ``R ε ~ N(0, G)``."""

    @abc.abstractmethod
    def diagonal(self) -> Float[Tensor, " d"]:
        """``diag G``."""

    @property
    def linear_model(self) -> LinearModel | None:
        """The linear model whose data add up to G; ``None`` for a matrix of another kind."""
        return None

    def rows(self, index: Int[Tensor, " r"], columns: Int[Tensor, " m"] | None = None) -> Float[Tensor, "r m"]:
        """Some rows, here by products with unit vectors.

        Args:
            index: Which.
            columns: Of these columns; ``None`` for all.
        """
        rows = (self @ unit_vectors(index, self.shape[0], self._like)).mT
        return rows if columns is None else rows[:, columns]

    def product_rows(self, index: Int[Tensor, " r"], block: Float[Tensor, "d k"]) -> Float[Tensor, "r k"]:
        """Some rows of a product with a block, here with the rows written out.

        Args:
            index: Which.
            block: What is multiplied.
        """
        return self.rows(index) @ block

    def features(
        self, count: int, generator: torch.Generator, index: Int[Tensor, " m"] | None = None
    ) -> Float[Tensor, "m D"]:
        """Some rows of a random Φ with ``E Φ Φᵀ = G``, here of noise that R colours.

        Args:
            count: Columns D.
            generator: Source of randomness.
            index: Which rows; ``None`` for all.
        """
        noise = probes.gaussian([self.root.shape[1], count], like=self._like, generator=generator)
        features = self.root @ (noise / count**0.5)
        return features if index is None else features[index]

    @property
    def T(self) -> PSDOperator:
        """The operator itself: it is symmetric."""
        return self

    def parts(
        self, columns: int = 1, *, batch: int = 1, generator: torch.Generator | None = None
    ) -> Iterator[Iterator[Operator]]:
        """The pieces, which add up to G, in mini-batches: the same ones in every pass, each read before the next.

        Here in one piece; see ``model.batches`` for where it is known how G adds up.

        Args:
            columns: Columns of the blocks they will be multiplied with.
            batch: Examples of a mini-batch, at least, but for the last.
            generator: Shuffles the mini-batches, where they can be; without one they come as the data do.
        """
        yield iter([self])
