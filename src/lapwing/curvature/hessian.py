"""The curvature as matrix-free operators: the generalised Gauss-Newton matrix, and the exact Hessian of the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, jvp, vjp, vmap

from lapwing import probes
from lapwing.curvature.costs import Form, Work
from lapwing.curvature.curved import thin_root
from lapwing.curvature.executors import Differentiated, Layered
from lapwing.curvature.ggn import COLUMNS
from lapwing.curvature.layers import Survey
from lapwing.curvature.network import Network, twice_differentiable
from lapwing.curvature.products import MEMORY, WORKING, Executor, Part, Prepared, Store, total
from lapwing.curvature.recording import (
    Recorded,
    gauss_newton,
    gauss_newton_by_adjoints,
    second_derivative,
    second_derivative_by_adjoints,
)
from lapwing.curvature.sums import BUDGET
from lapwing.data import Batch, Data
from lapwing.errors import UnsupportedError
from lapwing.likelihoods import Likelihood
from lapwing.linalg import FunctionOperator, Operator


@final
@dataclass(frozen=True, eq=False, repr=False)
class GGNProduct(Operator):
    """``G = sum_n J_nᵀ B_n J_n`` touched through products alone.

    Three forms of one product, chosen for each block of columns by ``costs.Work``: *layers* holds Sᵀ J of a chunk of
    examples, layer by layer, and multiplies; *split* records the product as a graph once a shape of batch and repeats
    only what depends on the column; *plain*, where recording fails, pushes and pulls every column through the network.

    What does not depend on the columns is kept from product to product if it fits ``memory`` for all the data; then
    the data are read once. It is that of one form at a time.

    Args:
        network: The network.
        survey: What is known of its layers.
        likelihood: The likelihood.
        data: The data; read once a product, or once in all.
        memory: Bytes a product may occupy, what is kept included.
        form: Form to use whatever the rule says; ``None`` leaves it to the rule.

    Cost:
        A column costs 4/3 of a gradient by the split, once prepared; see ``costs`` for all forms.
    """

    network: Network
    survey: Survey
    likelihood: Likelihood
    data: Data
    memory: int = MEMORY
    form: Form | None = None
    _store: Store = field(default_factory=Store, init=False, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """The uncertain weights d, twice."""
        return (self.network.size, self.network.size)

    @property
    def T(self) -> GGNProduct:
        """The operator itself: it is symmetric."""
        return self

    @property
    def _like(self) -> Tensor:
        return self.network.like

    def choose(self, columns: int) -> Form:
        """The form of a product with a block of so many columns."""
        if self.form is not None:
            return self.form
        return self._work.choose(columns, self._room, self._examples)

    def prepare(self, columns: int = 1) -> None:
        """Do now what can be done before the first product with so many columns, and be kept."""
        form = self.choose(columns)
        for _ in self._visit(columns):
            if form in self._store.too_large:
                return

    def parts(self, columns: int = 1, *, generator: torch.Generator | None = None) -> Iterator[Part]:
        """G piece by piece: the curvature of each chunk of a batch, for products with so many columns.

        Args:
            columns: Columns of the blocks to come, by which the form is chosen.
            generator: Shuffles the pieces, where all of them are kept; else they come as the data do.

        Cost:
            That of a product, spread over the pieces.
        """
        chunks = self._visit(columns)
        if self._store.form == self.choose(columns) and self._store.chunks is not None:
            order = probes.permutation(len(self._store.chunks), generator=generator)
            chunks = (self._store.chunks[i] for i in order)
        for chunk in chunks:
            yield Part(FunctionOperator(chunk.product, chunk.product, self.shape, self._like), chunk.examples)

    @property
    def kept_bytes(self) -> int:
        """Bytes kept for the next product."""
        return self._store.bytes

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return total(self._visit(block.shape[1]), block)

    def _visit(self, columns: int) -> Iterator[Prepared]:
        form = self.choose(columns)
        if form == "layers" and self._work.kept[0] * self._examples > self._room:
            self._store.too_large.add(form)
        return self._store.visit(self._executors[form], self.data, self.memory)

    @property
    def _room(self) -> int:
        """Numbers there is room to keep."""
        return (self.memory - self.memory // WORKING) // self.network.like.element_size()

    @cached_property
    def _work(self) -> Work:
        f = self.likelihood.canonical(torch.zeros(1, *self.survey.output))
        columns = thin_root(self.likelihood, f)[..., 0, :].numel()
        return Work.of(self.network, self.survey, self.data.first(), columns)

    @cached_property
    def _examples(self) -> int:
        return sum(len(batch) for batch in self.data)

    @cached_property
    def _executors(self) -> dict[Form, Executor]:
        work, itemsize = self._work, self.network.like.element_size()
        plain = Differentiated(self.network, self.likelihood)
        padded = (gauss_newton_by_adjoints,)
        recipes = padded if self.network.padded else (gauss_newton, *padded)
        working = self.memory // WORKING
        extra = -(-work.kept[0] // work.cotangents)
        examples = self.survey.chunk(work.cotangents, itemsize, min(BUDGET, working), extra)
        return {
            "layers": Layered(self.network, self.survey, self.likelihood, examples),
            "split": Recorded(self.network, self.likelihood, recipes, work.chunk(itemsize, working), plain),
            "plain": plain,
        }


@final
@dataclass(frozen=True, eq=False, repr=False)
class HessianProduct(Operator):
    """The exact Hessian of the negative log likelihood, touched through products alone (Pearlmutter 1994).

    It is symmetric, and indefinite away from a minimum: not a precision by itself. Recorded and split as in
    ``GGNProduct`` where that is possible.

    Args:
        network: The network.
        likelihood: The likelihood.
        data: The data; read once a product, or once in all.
        memory: Bytes a product may occupy, what is kept included.
        form: ``"plain"`` to differentiate for every column; ``None`` records where possible.

    Raises:
        UnsupportedError: If an operation of the network has no forward-mode derivative.

    Cost:
        A forward-over-reverse pass a column: about two gradients, less by what is kept.
    """

    network: Network
    likelihood: Likelihood
    data: Data
    memory: int = MEMORY
    form: Form | None = None
    _store: Store = field(default_factory=Store, init=False, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """The uncertain weights d, twice."""
        return (self.network.size, self.network.size)

    @property
    def T(self) -> HessianProduct:
        """The operator itself: it is symmetric."""
        return self

    @property
    def _like(self) -> Tensor:
        return self.network.like

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        return total(self._store.visit(self._executor, self.data, self.memory), block)

    @cached_property
    def _executor(self) -> Executor:
        plain = Pearlmutter(self.network, self.likelihood)
        if self.form == "plain":
            return plain
        recipe = second_derivative_by_adjoints if self.network.padded else second_derivative
        return Recorded(self.network, self.likelihood, (recipe,), WHOLE, plain)


WHOLE = 2**62
"""Examples to a chunk where batches stay whole."""


@final
@dataclass(frozen=True, eq=False)
class Pearlmutter(Executor):
    """Forward over reverse through the network again for every column.

    Args:
        network: The network.
        likelihood: The likelihood.
    """

    network: Network
    likelihood: Likelihood
    form = "plain"

    def prepare(self, batch: Batch) -> Prepared:
        """Nothing can be prepared."""

        def loss(weights: Tensor) -> Tensor:
            f = self.likelihood.canonical(self.network(batch.inputs, self.network.with_weights(weights)))
            return self.likelihood.nll(f, self.likelihood.canonical_targets(f, batch.targets)).sum()

        def product(block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
            with twice_differentiable():
                return self._product(grad(loss), block)

        return Prepared(product, None)

    def _product(self, gradient: Callable[[Tensor], Tensor], block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        """The derivative of a gradient in each direction of the block."""
        weights = self.network.weights
        if self.network.padded:
            pull = vjp(gradient, weights)[1]
            return vmap(pull, in_dims=1, out_dims=1, chunk_size=COLUMNS)(block)[0]
        try:
            push = lambda column: jvp(gradient, (weights,), (column,))[1]  # noqa: E731
            return vmap(push, in_dims=1, out_dims=1, chunk_size=COLUMNS)(block)
        except NotImplementedError as reason:
            raise UnsupportedError(
                "a network that can be differentiated forward through its gradient", str(reason).split(".")[0], "GGN()"
            ) from reason


def canonical(likelihood: Likelihood, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Outputs and targets of a batch as the likelihood takes them."""
    f = likelihood.canonical(outputs)
    return f, likelihood.canonical_targets(f, batch.targets)
