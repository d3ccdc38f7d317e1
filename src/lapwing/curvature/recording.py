"""Products of a network's curvature as functions of tensors alone, recorded and cut once for each shape of a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, jvp, vjp

from lapwing.curvature.curved import curved
from lapwing.curvature.layerwise import spread
from lapwing.curvature.network import Network, twice_differentiable
from lapwing.curvature.products import Executor, Prepared
from lapwing.curvature.split import Split, held_bytes, split
from lapwing.data import Batch, over_tensors, tensors
from lapwing.errors import UnsupportedError
from lapwing.likelihoods import Likelihood
from lapwing.types import Params

logger = logging.getLogger(__name__)

SHAPES = 8
"""Most shapes of a batch that are recorded; batches of further shapes go the plain way."""

Outputs = Callable[[Params], Tensor]
"""Canonical outputs of a batch, given the parameters."""


@runtime_checkable
class Recipe(Protocol):
    """A product to be recorded: of a batch's curvature, with a change of the parameters."""

    def __call__(
        self, likelihood: Likelihood, outputs: Outputs, targets: Tensor, params: Params, change: Params
    ) -> Params:
        """The product.

        Args:
            likelihood: The likelihood.
            outputs: Canonical outputs of the batch, given the parameters.
            targets: The batch's targets.
            params: The parameters.
            change: A change of the parameters.
        """
        ...


def gauss_newton(likelihood: Likelihood, outputs: Outputs, targets: Tensor, params: Params, change: Params) -> Params:
    """``Jᵀ B J v``, J pushed forward beside the forward pass."""
    f, pull = vjp(outputs, params)[:2]
    moved = jvp(outputs, (params,), (change,))[1]
    return pull(curved(likelihood, f, likelihood.canonical_targets(f, targets), moved))[0]


def gauss_newton_by_adjoints(
    likelihood: Likelihood, outputs: Outputs, targets: Tensor, params: Params, change: Params
) -> Params:
    """``Jᵀ B J v``, J as the adjoint of ``u -> Jᵀ u``: for what has no forward mode, or a wrong one."""
    f, pull = vjp(outputs, params)[:2]
    push = vjp(lambda u: pull(u)[0], torch.zeros_like(f))[1]
    return pull(curved(likelihood, f, likelihood.canonical_targets(f, targets), push(change)[0]))[0]


def second_derivative(
    likelihood: Likelihood, outputs: Outputs, targets: Tensor, params: Params, change: Params
) -> Params:
    """``∇²L v``, forward over reverse (Pearlmutter 1994)."""
    return jvp(_gradient(likelihood, outputs, targets), (params,), (change,))[1]


def second_derivative_by_adjoints(
    likelihood: Likelihood, outputs: Outputs, targets: Tensor, params: Params, change: Params
) -> Params:
    """``∇²L v``, reverse over reverse: for what has a wrong forward mode."""
    return vjp(_gradient(likelihood, outputs, targets), params)[1](change)[0]


def _gradient(likelihood: Likelihood, outputs: Outputs, targets: Tensor) -> Callable[[Params], Params]:
    def loss(params: Params) -> Tensor:
        f = outputs(params)
        return likelihood.nll(f, likelihood.canonical_targets(f, targets)).sum()

    return grad(loss)


@final
@dataclass(frozen=True, eq=False)
class Recorded(Executor):
    """A product in two halves, recorded for each shape of a batch.

    Args:
        network: The network.
        likelihood: The likelihood.
        recipes: What to record, in order of preference.
        examples: Examples to a chunk, at most.
        plain: What to do where nothing can be recorded.
    """

    network: Network
    likelihood: Likelihood
    recipes: tuple[Recipe, ...]
    examples: int
    plain: Executor
    form = "split"
    traces: dict[Hashable, Split | None] = field(default_factory=dict, init=False, repr=False)

    def size(self, examples: int) -> int:
        """As many as fit the working memory."""
        return min(examples, self.examples)

    def prepare(self, batch: Batch) -> Prepared:
        """The half that does not depend on the columns."""
        fixed = self._fixed(batch)
        halves = self._halves(batch, fixed)
        if halves is None:
            return self.plain.prepare(batch)
        self.network.check_unchanged()
        kept = halves.prepare(fixed)

        def product(block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
            return torch.stack([self._column(halves, kept, column) for column in block.unbind(1)], dim=1)

        data = sum(value.numel() * value.element_size() for value in self._data(batch))
        return Prepared(product, held_bytes(kept, tuple(fixed)) + data)

    @property
    def _others(self) -> Params:
        return {**self.network.fixed, **self.network.buffers}

    def _fixed(self, batch: Batch) -> list[Tensor]:
        """All tensors that stay from column to column."""
        return [*self.network.params.values(), *self._others.values(), *self._data(batch)]

    def _data(self, batch: Batch) -> list[Tensor]:
        return [value.contiguous() for value in (*tensors(batch.inputs), batch.targets)]

    def _column(self, halves: Split, kept: tuple[Tensor, ...], column: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        layout, index = self.network.layout, self.network.index
        full = spread(self.network, column.unsqueeze(1)).squeeze(1)
        moved = halves.product(kept, list(layout.unflatten(full.contiguous()).values()))
        flat = torch.cat([value.reshape(-1) for value in moved])
        return flat if index is None else flat[index]

    def _halves(self, batch: Batch, fixed: list[Tensor]) -> Split | None:
        key = shape_of(batch)
        if key not in self.traces:
            if len(self.traces) == SHAPES:
                logger.info("%d shapes of a batch recorded: further ones go the plain way", SHAPES)
            self.traces[key] = self._record(batch, fixed) if len(self.traces) < SHAPES else None
        return self.traces[key]

    def _record(self, batch: Batch, fixed: list[Tensor]) -> Split | None:
        change = [torch.zeros_like(value) for value in self.network.params.values()]
        reasons: list[str] = []
        for recipe in self.recipes:
            try:
                return split(self._function(recipe, batch), fixed, change)
            except UnsupportedError as reason:
                reasons.append(reason.got)
        logger.info(
            "cannot record the product (%s): differentiating for every column", "; ".join(dict.fromkeys(reasons))
        )
        return None

    def _function(self, recipe: Recipe, batch: Batch) -> Callable[..., tuple[Tensor, ...]]:
        """The product as a function of tensors alone: parameters, other tensors of the network, data, change."""
        names, others = self.network.names, tuple(self._others)

        def function(*values: Tensor) -> tuple[Tensor, ...]:
            rest = iter(values)
            params = {name: next(rest) for name in names}
            known = {name: next(rest) for name in others}
            inputs = over_tensors(lambda value: next(rest) if isinstance(value, Tensor) else value, batch.inputs)
            targets = next(rest)
            change = {name: next(rest) for name in names}
            outputs = lambda at: self.likelihood.canonical(self.network(inputs, {**known, **at}))  # noqa: E731
            with twice_differentiable():
                moved = recipe(self.likelihood, outputs, targets, params, change)
            return tuple(moved[name] for name in names)

        return function


def shape_of(batch: Batch) -> Hashable:
    """What recorded halves depend on: shapes and dtypes of the tensors, and all other inputs."""
    described: list[Any] = []

    def describe(value: Any) -> Any:
        tensor = isinstance(value, Tensor)
        described.append((tuple(value.shape), value.dtype, value.device) if tensor else repr(value))
        return value

    keys = tuple(batch.inputs) if isinstance(batch.inputs, Mapping) else ()
    over_tensors(describe, batch.inputs)
    describe(batch.targets)
    return (keys, *described)
