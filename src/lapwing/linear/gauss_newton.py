"""The generalised Gauss-Newton matrix of a linear model, by products alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, count, tensors
from lapwing.ground.errors import DataError
from lapwing.ground.layout import summed, together
from lapwing.ground.precision import wide, wide_like
from lapwing.linalg import FunctionOperator, Operator
from lapwing.linear.model import Chunk, LinearModel, batches
from lapwing.linear.psd_operator import PSDOperator

SPARE = 2**28
"""Bytes that the outputs of all data at other weights may take, to be kept (256 MiB)."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class GGNProduct(PSDOperator):
    """``G = sum_n J_nᵀ B_n J_n``, the generalised Gauss-Newton matrix of a linear model, by products alone.

    J is the same wherever B is taken. Outputs at other weights are kept chunk by chunk, and found again where a later
    pass over the data has the same chunk, whatever its place: a loader that shuffles costs time and nothing else.

    Args:
        model: J, the data, and the likelihood whose output Hessian is B.
        weights: w, at whose outputs ``h(w, ·)`` B is taken; ``None`` for the model's own outputs.
        affine: Whether ``h(w, x) = f(x) + J (w - w̃)``, or ``J w`` without the outputs at w̃.
        output_cache: Outputs at w that are at hand, by the signature of their inputs; more are added.
        spare: Bytes that the outputs of all data may take, to be kept.

    Cost:
        A column: a push and a pull over the data. At other weights, each chunk not seen before takes a push more.
    """

    model: LinearModel
    weights: Float[Tensor, " d"] | None = None
    affine: bool = True
    output_cache: dict[bytes, Tensor] = field(default_factory=dict, repr=False)
    spare: int = SPARE

    @property
    def shape(self) -> tuple[int, int]:
        """The uncertain weights d, twice."""
        size = len(self.model.weights)
        return (size, size)

    @property
    def linear_model(self) -> LinearModel:
        """The linear model."""
        return self.model

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
        if key in self.output_cache:
            return self.output_cache[key]
        h = outputs_at(chunk, self.model, self.weights, self.affine)
        if (len(self.output_cache) + 1) * h.nbytes <= self.spare:
            self.output_cache[key] = h
        return h

    def parts(
        self, columns: int = 1, *, batch: int = 1, generator: torch.Generator | None = None
    ) -> Iterator[Iterator[Operator]]:
        """The curvature of each chunk of a mini-batch; see ``PSDOperator.parts`` and ``model.batches``."""
        for chunks in batches(self.model, columns, batch=batch, generator=generator):
            yield (self._part(chunk) for chunk in chunks)

    def _part(self, chunk: Chunk) -> Operator:
        apply_hessian = self.model.likelihood.hessian_product(self.outputs(chunk), chunk.targets)

        def product(block: Tensor) -> Tensor:
            return ggn_product(chunk, apply_hessian, block)

        return FunctionOperator(product, product, self.shape, self._like)

    @property
    def _like(self) -> Tensor:
        return self.model.weights

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return torch.empty_like(block).copy_(self.model.data.added(summed(self._products(block), block)))

    def _products(self, block: Float[Tensor, "d k"]) -> Iterator[Float[Tensor, "d k"]]:
        """What each chunk adds to ``G V``."""
        for chunk, h in self.visit(block.shape[1]):
            apply_hessian = self.model.likelihood.hessian_product(h, chunk.targets)
            yield ggn_product(chunk, apply_hessian, block)

    def _rooted(self, block: Float[Tensor, "r k"]) -> Float[Tensor, "d k"]:
        like = block.new_empty(self.shape[0], block.shape[1])
        return like.copy_(self.model.data.added(summed(self._root_products(block), like)))

    def _root_products(self, block: Float[Tensor, "r k"]) -> Iterator[Float[Tensor, "d k"]]:
        """What each chunk adds to ``R V``."""
        likelihood = self.model.likelihood
        before, examples = self.model.data.span
        start = before * len(block) // examples
        for chunk, h in self.visit(block.shape[1]):
            rows = (*h.shape[:-1], likelihood.rank(h.shape[-1]))
            end = start + math.prod(rows)
            if end > len(block):
                raise DataError(
                    f"{self.model.data.examples} examples in every pass over the data, as in the first",
                    "more",
                    "a loader that yields the same examples each time, or a list of its batches",
                )
            noise = block[start:end].view(*rows, block.shape[1])
            yield chunk.pull(likelihood.root_product(h, chunk.targets, noise).movedim(-1, 0))
            start = end

    def _adjoint(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "r k"]:
        likelihood = self.model.likelihood
        rows = list[Tensor]()
        for chunk, h in self.visit(block.shape[1]):
            changes = chunk.push(block).movedim(0, -1)
            rows.append(likelihood.root_adjoint(h, chunk.targets, changes).flatten(0, -2))
        return self.model.data.joined(torch.cat(rows))


def ggn_product(
    chunk: Chunk, apply_hessian: Callable[[Tensor], Tensor], block: Float[Tensor, "d k"]
) -> Float[Tensor, "d k"]:
    """``Jᵀ B J V`` of a chunk, a few columns at a time.

    Args:
        chunk: J.
        apply_hessian: ``u -> B u``, see ``Likelihood.hessian_product``.
        block: V.
    """
    pieces = block.split(chunk.width, dim=1)
    return together((chunk.pull(apply_hessian(chunk.push(columns))) for columns in pieces), 1)


def outputs_at(
    chunk: Chunk, model: LinearModel, weights: Float[Tensor, " d"], affine: bool
) -> Float[Tensor, "n *event c"]:
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
    n = count(inputs)
    parts: list[Tensor] = []
    for x in tensors(inputs):
        leading = n if x.ndim and len(x) == n else 1
        rows = wide(x.reshape(leading, -1))
        weights = torch.arange(1, rows.shape[1] + 1, **wide_like(x)).square().cos()
        parts.append((rows * weights).sum(1))
    return torch.cat(parts).cpu().numpy().tobytes()
