"""The curvature that the data add up to, in either view, as solvers see it: by products, by its root, in pieces."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs, count, tensors
from lapwing.ground.errors import DataError
from lapwing.ground.layout import summed, together
from lapwing.linalg import Diagonal, FunctionOperator, Operator
from lapwing.linalg.operator import unit_vectors
from lapwing.linear.model import Chunk, LinearModel, batches

SPARE = 2**28
"""Bytes that the outputs of all data at other weights may take, to be kept (256 MiB)."""

COLUMNS = 64
"""Columns of a root that are multiplied together where the diagonal in the function view is asked for."""


class Gram(Operator):
    """A positive semi-definite ``G = R Rᵀ``, a sum over the data."""

    @property
    @abc.abstractmethod
    def root(self) -> Operator:
        """R: standard normal noise ε has ``R ε ~ N(0, G)``."""

    @abc.abstractmethod
    def diagonal(self) -> Float[Tensor, " d"]:
        """``diag G``."""

    def rows(self, index: Int[Tensor, " r"], columns: Int[Tensor, " m"] | None = None) -> Float[Tensor, "r m"]:
        """Some rows, here by products with unit vectors.

        Args:
            index: Which.
            columns: Of these columns; ``None`` for all.
        """
        found = (self @ unit_vectors(index, self.shape[0], self._like)).mT
        return found if columns is None else found[:, columns]

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
        found = self.root @ (noise / count**0.5)
        return found if index is None else found[index]

    @property
    def T(self) -> Gram:
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


@final
@dataclass(frozen=True, eq=False, repr=False)
class GGNProduct(Gram):
    """``G = sum_n J_nᵀ B_n J_n``, the generalised Gauss-Newton matrix of a linear model, by products alone.

    J is the same wherever B is taken. Outputs at other weights are kept chunk by chunk, and found again where a later
    pass over the data has the same chunk, whatever its place: a loader that shuffles costs time and nothing else.

    Args:
        model: J, the data, and the likelihood whose output Hessian is B.
        weights: w, at whose outputs ``h(w, ·)`` B is taken; ``None`` for the model's own outputs.
        affine: Whether ``h(w, x) = f(x) + J (w - w̃)``, or ``J w`` without the outputs at w̃.
        known: Outputs at w that are at hand, by the signature of their inputs.

    Cost:
        A column: a push and a pull over the data. At other weights, each chunk not seen before takes a push more.
    """

    model: LinearModel
    weights: Float[Tensor, " d"] | None = None
    affine: bool = True
    known: dict[bytes, Tensor] = field(default_factory=dict, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """The uncertain weights d, twice."""
        size = len(self.model.weights)
        return (size, size)

    @property
    def root(self) -> FunctionOperator:
        """``R = Jᵀ S`` with ``R Rᵀ = Jᵀ B J`` for the roots S of the output Hessians, B = S Sᵀ.

        Columns are ordered by example, event position, column of S: by the order of the data, which must be the same
        in each pass where the model does not keep what it needs of them.
        """
        each = self.model.likelihood.root_columns(self.model.event)
        size = (self.shape[0], self.model.data.span[1] * each)
        return FunctionOperator(self._rooted, self._adjoint, size, self._like)

    def diagonal(self) -> Float[Tensor, " d"]:
        """``diag(Jᵀ B J)`` with B at the model's own outputs, wherever it is taken in products."""
        return self.model.diagonal()

    def visit(self, columns: int = 1) -> Iterator[tuple[Chunk, Float[Tensor, "n *event c"]]]:
        """Each chunk of the data, and the outputs at which B is taken."""
        for chunk in self.model.visit(columns):
            yield chunk, self.outputs(chunk)

    def outputs(self, chunk: Chunk) -> Float[Tensor, "n *event c"]:
        """The outputs of a chunk at which B is taken."""
        if self.weights is None:
            return chunk.outputs
        key = signature(chunk.inputs)
        if key in self.known:
            return self.known[key]
        h = moved(chunk, self.model, self.weights, self.affine)
        if (len(self.known) + 1) * h.nbytes <= SPARE:
            self.known[key] = h
        return h

    def parts(
        self, columns: int = 1, *, batch: int = 1, generator: torch.Generator | None = None
    ) -> Iterator[Iterator[Operator]]:
        """The curvature of each chunk of a mini-batch; see ``Gram.parts`` and ``model.batches``."""
        for chunks in batches(self.model, columns, batch=batch, generator=generator):
            yield (self._part(chunk) for chunk in chunks)

    def _part(self, chunk: Chunk) -> Operator:
        product = partial(bent, chunk, self._bending(chunk, self.outputs(chunk)))
        return FunctionOperator(product, product, self.shape, self._like)

    def _bending(self, chunk: Chunk, h: Tensor) -> Callable[[Tensor], Tensor]:
        return self.model.likelihood.bending(h, chunk.targets)

    @property
    def _like(self) -> Tensor:
        return self.model.weights

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        parts = (bent(chunk, self._bending(chunk, h), block) for chunk, h in self.visit(block.shape[1]))
        return torch.empty_like(block).copy_(self.model.data.added(summed(parts, block)))

    def _rooted(self, block: Float[Tensor, "r k"]) -> Float[Tensor, "d k"]:
        like = block.new_empty(self.shape[0], block.shape[1])
        return like.copy_(self.model.data.added(summed(self._coloured(block), like)))

    def _coloured(self, block: Float[Tensor, "r k"]) -> Iterator[Float[Tensor, "d k"]]:
        """What each chunk adds to ``R V``."""
        (before, examples), k = self.model.data.span, block.shape[1]
        start = before * len(block) // examples
        likelihood = self.model.likelihood
        for chunk, h in self.visit(k):
            ranks = (*h.shape[:-1], likelihood.rank(h.shape[-1]))
            columns = math.prod(ranks)
            if start + columns > len(block):
                raise DataError(
                    f"{self.model.data.examples} examples in every pass over the data, as in the first",
                    "more",
                    "a loader that yields the same examples each time, or a list of its batches",
                )
            noise = block[start : start + columns].view(*ranks, k)
            yield chunk.pull(likelihood.root_product(h, chunk.targets, noise).movedim(-1, 0))
            start += columns

    def _adjoint(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "r k"]:
        likelihood = self.model.likelihood
        rows = list[Tensor]()
        for chunk, h in self.visit(block.shape[1]):
            moved = chunk.push(block).movedim(0, -1)
            rows.append(likelihood.root_adjoint(h, chunk.targets, moved).flatten(0, -2))
        return self.model.data.joined(torch.cat(rows))


@final
@dataclass(frozen=True, eq=False, repr=False)
class FunctionView(Gram):
    """``Rᵀ A⁻¹ R``, what the data make of the prior's functions, by products with R.

    Args:
        curvature: ``G = R Rᵀ``.
        prior: A.
    """

    curvature: Gram
    prior: Diagonal

    @property
    def shape(self) -> tuple[int, int]:
        """One coordinate a column of R."""
        columns = self.curvature.root.shape[1]
        return (columns, columns)

    @property
    def root(self) -> FunctionOperator:
        """``Rᵀ A^-½``."""
        root, unit = self.curvature.root, self.prior.inverse_root()
        size = (root.shape[1], root.shape[0])
        return FunctionOperator(lambda v: root.T @ (unit @ v), lambda u: unit @ (root @ u), size, self._like)

    def diagonal(self) -> Float[Tensor, " r"]:
        """The squared lengths of the columns of ``A^-½ R``, a product with a few of them at a time."""
        unit, root = self.prior.inverse_root(), self.curvature.root
        found: list[Tensor] = []
        for part in torch.arange(self.shape[0], device=self.device).split(COLUMNS):
            columns = unit_vectors(part, self.shape[0], self._like)
            found.append((unit @ (root @ columns)).square().sum(0))
        return torch.cat(found)

    @property
    def _like(self) -> Tensor:
        return self.prior.values

    def _matmat(self, block: Float[Tensor, "r k"]) -> Float[Tensor, "r k"]:
        root = self.root
        return root @ (root.T @ block)


def bent(chunk: Chunk, bend: Callable[[Tensor], Tensor], block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
    """``Jᵀ B J V`` of a chunk for an output Hessian B, a few columns at a time."""
    return together((chunk.pull(bend(chunk.push(columns))) for columns in block.split(chunk.width, dim=1)), 1)


def moved(chunk: Chunk, model: LinearModel, weights: Float[Tensor, " d"], affine: bool) -> Float[Tensor, "n *event c"]:
    """``h(w, ·)`` of a chunk: ``f + J (w - w̃)``, or ``J w``."""
    change = weights - model.weights if affine else weights
    pushed = chunk.push(change[:, None])[0]
    return chunk.outputs + pushed if affine else pushed


def signature(inputs: Inputs) -> bytes:
    """One number an example and tensor that hardly any other example has: a projection on fixed random directions.

    Example:
        >>> x = torch.rand(3, 4)
        >>> signature(x) == signature(x.clone()), signature(x) == signature(x.flip(0))
        (True, False)
    """
    n, parts = count(inputs), []
    for x in tensors(inputs):
        rows = x.reshape(n if x.ndim and len(x) == n else 1, -1).double()
        weights = torch.arange(1, rows.shape[1] + 1, dtype=torch.float64, device=x.device).square().cos()
        parts.append((rows * weights).sum(1))
    return torch.cat(parts).cpu().numpy().tobytes()
