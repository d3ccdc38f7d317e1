"""The curvature that the data add up to, as solvers see it: by products, by its root, and piece by piece."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import DataError
from lapwing.linalg import FunctionOperator, Operator, Structured
from lapwing.linear.model import Chunk, LinearModel
from lapwing.linear.shift import Shift


@final
@dataclass(frozen=True, eq=False)
class Part:
    """What some of the examples add to a curvature.

    Args:
        curvature: Their part G_S of ``G = sum_S G_S``.
        examples: How many they are.
    """

    curvature: Operator
    examples: int


class Gram(Operator):
    """A positive semi-definite ``G = R Rᵀ``, a sum over the data."""

    @property
    @abc.abstractmethod
    def root(self) -> Operator:
        """R: standard normal noise ε has ``R ε ~ N(0, G)``."""

    @abc.abstractmethod
    def diagonal(self) -> Float[Tensor, " d"]:
        """``diag G``."""

    @property
    def T(self) -> Gram:
        """The operator itself: it is symmetric."""
        return self

    def parts(
        self, columns: int = 1, *, batch: int = 1, generator: torch.Generator | None = None
    ) -> Iterator[Iterator[Part]]:
        """The pieces, which add up to G, in mini-batches: the same ones in every pass, each read before the next.

        Here in one piece; see ``LinearModel.batches`` for where it is known how G adds up.

        Args:
            columns: Columns of the blocks they will be multiplied with.
            batch: Examples of a mini-batch, at least, but for the last.
            generator: Shuffles the mini-batches, where they can be; without one they come as the data do.
        """
        yield iter([Part(self, 1)])

    def check(self) -> None:
        """Refuse to go on when what G stands on was changed since."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class Kernel(Gram):
    """A ``G`` given as a matrix, such as ``B^½ K B^½`` for a kernel matrix K: the function view, where there is no J.

    Args:
        matrix: G.

    Example:
        >>> from lapwing.linalg import Dense
        >>> Kernel(Dense(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))).diagonal()
        tensor([2., 2.])
    """

    matrix: Structured

    @property
    def shape(self) -> tuple[int, int]:
        """That of the matrix."""
        return self.matrix.shape

    @property
    def root(self) -> Operator:
        """Its root."""
        return self.matrix.root()

    def diagonal(self) -> Float[Tensor, " d"]:
        """Its diagonal."""
        return self.matrix.diagonal()

    @property
    def _like(self) -> Tensor:
        return self.matrix._like

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return self.matrix @ block


@final
@dataclass(frozen=True, eq=False, repr=False)
class GGNProduct(Gram):
    """``G = sum_n J_nᵀ B_n J_n``, the generalised Gauss-Newton matrix of a linear model, by products alone.

    Args:
        model: J, the data, and the likelihood whose output Hessian is B.
        shift: Where B is taken; ``None`` for the model's own outputs. J is the same in any case.

    Cost:
        A column: a push and a pull over the data. At a shift, each chunk that was not seen there before takes a push
        more.
    """

    model: LinearModel
    shift: Shift | None = None

    def at(self, weights: Float[Tensor, " d"], *, affine: bool = True) -> GGNProduct:
        """The product with B at ``h(w, ·)``; what the model keeps is shared.

        Args:
            weights: w.
            affine: Whether ``h(w, x) = f(x) + J (w - w̃)``, or ``J w`` without the outputs at w̃.
        """
        change = weights - self.model.weights if affine else weights
        return self.shifted(Shift(change, affine, self.model.spare))

    def shifted(self, shift: Shift) -> GGNProduct:
        """The product with B at a shift; what the model keeps is shared."""
        return replace(self, shift=shift)

    @property
    def shape(self) -> tuple[int, int]:
        """The uncertain weights d, twice."""
        size = len(self.model.weights)
        return (size, size)

    @property
    def root(self) -> GGNRoot:
        """``Jᵀ S``."""
        return GGNRoot(self)

    def diagonal(self) -> Float[Tensor, " d"]:
        """``diag(Jᵀ B J)`` with B at the model's own outputs, whatever the shift."""
        return self.model.diagonal()

    def check(self) -> None:
        """See ``LinearModel.check``: only what tells of a change at no cost."""
        self.model.check(values=False)

    def visit(self, columns: int = 1) -> Iterator[tuple[Chunk, Float[Tensor, "n *event c"]]]:
        """Each chunk of the data, and the outputs at which B is taken."""
        for chunk in self.model.visit(columns):
            yield chunk, self._outputs(chunk)

    def parts(
        self, columns: int = 1, *, batch: int = 1, generator: torch.Generator | None = None
    ) -> Iterator[Iterator[Part]]:
        """The curvature of each chunk of a mini-batch; see ``Gram.parts`` and ``LinearModel.batches``."""
        for chunks in self.model.batches(columns, batch=batch, generator=generator):
            yield (self._part(chunk) for chunk in chunks)

    def _part(self, chunk: Chunk) -> Part:
        product = partial(chunk.product, self.model.likelihood.bending(self._outputs(chunk), chunk.targets))
        return Part(FunctionOperator(product, product, self.shape, self._like), chunk.examples)

    def _outputs(self, chunk: Chunk) -> Float[Tensor, "n *event c"]:
        return chunk.outputs if self.shift is None else self.shift.outputs(chunk)

    @property
    def _like(self) -> Tensor:
        return self.model.weights

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        total = torch.zeros_like(block)
        for chunk, h in self.visit(block.shape[1]):
            total += chunk.product(self.model.likelihood.bending(h, chunk.targets), block)
        return total


@final
@dataclass(frozen=True, eq=False, repr=False)
class GGNRoot(Operator):
    """``R = Jᵀ S`` with ``R Rᵀ = Jᵀ B J`` for the roots S of the output Hessians, B = S Sᵀ.

    Columns are ordered by example, event position, column of S. Standard normal noise ε has ``R ε ~ N(0, Jᵀ B J)``.

    Args:
        product: The matrix itself; its data are read once a product, in the same order each time, or not at all where
            its model keeps what it needs of them.

    Cost:
        A product with k columns: that of one with Jᵀ.
    """

    product: GGNProduct

    @property
    def shape(self) -> tuple[int, int]:
        """The uncertain weights d, and all columns of all roots."""
        return (self.product.shape[0], self._examples * self._width)

    @property
    def T(self) -> FunctionOperator:
        """``Sᵀ J``."""
        return FunctionOperator(self._adjoint, self._matmat, (self.shape[1], self.shape[0]), self._like)

    @property
    def _like(self) -> Tensor:
        return self.product.model.weights

    @property
    def _examples(self) -> int:
        return self.product.model.data.examples

    @property
    def _width(self) -> int:
        """Columns of the roots of one example."""
        return self.product.model.likelihood.thin_root(torch.zeros(1, *self.product.model.event))[..., 0, :].numel()

    def _matmat(self, block: Float[Tensor, "r k"]) -> Float[Tensor, "d k"]:
        total, start, k = block.new_zeros(self.shape[0], block.shape[1]), 0, block.shape[1]
        for chunk, root in self._chunks(k):
            columns = root.shape[0] * root.shape[-1]
            self._check_columns(start + columns, len(block))
            noise = block[start : start + columns].view(len(root), -1, k)
            total += chunk.pull((root @ noise).movedim(-1, 0).reshape(k, *chunk.outputs.shape))
            start += columns
        return total

    def _check_columns(self, needed: int, given: int) -> None:
        if needed > given:
            raise DataError(
                f"{self._examples} examples in every pass over the data, as in the first",
                "more",
                "a loader that yields the same examples each time, or a list of its batches",
            )

    def _adjoint(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "r k"]:
        rows = []
        for chunk, root in self._chunks(block.shape[1]):
            pushed = chunk.push(block).flatten(1, -2).movedim(0, -1)
            rows.append((root.mT @ pushed).flatten(0, 1))
        return torch.cat(rows)

    def _chunks(self, columns: int) -> Iterator[tuple[Chunk, Float[Tensor, "m c r"]]]:
        """Each chunk of the data, and the root at each of its m positions."""
        for chunk, h in self.product.visit(columns):
            yield chunk, self.product.model.likelihood.thin_root(h, chunk.targets).flatten(0, -3)
