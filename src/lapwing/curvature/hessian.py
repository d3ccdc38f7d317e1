"""The curvature as matrix-free operators: the generalised Gauss-Newton matrix, and the exact Hessian of the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, jvp, vjp, vmap

from lapwing.curvature.costs import Form
from lapwing.curvature.curved import bending
from lapwing.curvature.ggn import COLUMNS
from lapwing.curvature.layers import Survey
from lapwing.curvature.linear import Linear, Shift
from lapwing.curvature.linearisation import Linearisation
from lapwing.curvature.network import Network, twice_differentiable
from lapwing.curvature.products import MEMORY, WORKING, Executor, Part, Prepared, Store, total
from lapwing.curvature.recording import Recording, Traced
from lapwing.curvature.split import Split, Tensors
from lapwing.data import Batch, Data
from lapwing.errors import UnsupportedError
from lapwing.likelihoods import Likelihood
from lapwing.linalg import FunctionOperator, Operator
from lapwing.types import Params


@final
@dataclass(frozen=True, eq=False, repr=False)
class GGNProduct(Operator):
    """``G = sum_n J_nᵀ B_n J_n`` touched through products alone.

    Three forms of one product, chosen for each block of columns by ``costs.Work``: *layers* holds J of a chunk of
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
        shift: Where B is taken; ``None`` for the trained weights. J is that of the trained weights in any case.

    Cost:
        A column costs 4/3 of a gradient by the split, once prepared; see ``costs`` for all forms. At a shift, each
        chunk that was not seen there before takes half a column more.
    """

    network: Network
    survey: Survey
    likelihood: Likelihood
    data: Data
    memory: int = MEMORY
    form: Form | None = None
    shift: Shift | None = None
    linearisation: Linearisation = field(init=False, repr=False)

    def __post_init__(self) -> None:
        setting = (self.network, self.survey, self.likelihood, self.data)
        object.__setattr__(self, "linearisation", Linearisation(*setting, self.memory, self.form))

    def at(self, weights: Float[Tensor, " d"], *, affine: bool = True) -> GGNProduct:
        """The product with B at ``h(w, ·)``, the outputs of the linearised network; what is kept is shared.

        Args:
            weights: w.
            affine: Whether ``h(w, x) = f(x) + J (w - w̃)``, or ``J w`` without the outputs at the trained weights w̃.
        """
        change = weights - self.network.weights if affine else weights
        return self.shifted(Shift(change, affine, self.memory // WORKING))

    def shifted(self, shift: Shift) -> GGNProduct:
        """The product with B at a shift; what is kept is shared."""
        shifted = replace(self, shift=shift)
        object.__setattr__(shifted, "linearisation", self.linearisation)
        return shifted

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
        return self.linearisation.choose(columns)

    def prepare(self, columns: int = 1) -> None:
        """Do now what can be done before the first product with so many columns, and be kept."""
        form = self.choose(columns)
        for _ in self.linearisation.visit(columns):
            if form in self.linearisation.store.too_large:
                return

    def visit(self, columns: int = 1) -> Iterator[tuple[Linear, Float[Tensor, "n *event c"]]]:
        """The Jacobian of each chunk of a batch, and the outputs at which B is taken."""
        for chunk in self.linearisation.visit(columns):
            yield chunk, self._outputs(chunk)

    def parts(
        self, columns: int = 1, *, batch: int = 1, generator: torch.Generator | None = None
    ) -> Iterator[Iterator[Part]]:
        """G piece by piece: the curvature of each chunk of a mini-batch; see ``Linearisation.batches``.

        Args:
            columns: Columns of the blocks to come, by which the form is chosen.
            batch: Examples to a mini-batch.
            generator: Shuffles them, where they can be.

        Cost:
            That of a product, spread over the pieces.
        """
        for chunks in self.linearisation.batches(columns, batch=batch, generator=generator):
            yield (self._part(chunk) for chunk in chunks)

    def _part(self, chunk: Linear) -> Part:
        product = partial(chunk.product, bending(self.likelihood, self._outputs(chunk), chunk.targets))
        return Part(FunctionOperator(product, product, self.shape, self._like), chunk.examples)

    def _outputs(self, chunk: Linear) -> Float[Tensor, "n *event c"]:
        return chunk.outputs if self.shift is None else self.shift.outputs(chunk)

    @property
    def kept_bytes(self) -> int:
        """Bytes kept for the next product."""
        return self.linearisation.store.bytes

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        total = torch.zeros_like(block)
        for chunk, h in self.visit(block.shape[1]):
            total += chunk.product(bending(self.likelihood, h, chunk.targets), block)
        return total


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
    _store: Store[Prepared] = field(default_factory=Store[Prepared], init=False, repr=False)

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
    def _executor(self) -> Executor[Prepared]:
        plain = Pearlmutter(self.network, self.likelihood)
        return plain if self.form == "plain" else RecordedHessian(self.network, self.likelihood, WHOLE, plain)


WHOLE = 2**62
"""Examples to a chunk where batches stay whole."""


def second_derivative(traced: Traced, *column: Tensor) -> Tensors:
    """``∇²L v``, forward over reverse (Pearlmutter 1994)."""
    change = dict(zip(traced.params, column, strict=True))
    return traced.in_order(jvp(_gradient(traced), (traced.params,), (change,))[1])


def second_derivative_by_adjoints(traced: Traced, *column: Tensor) -> Tensors:
    """``∇²L v``, reverse over reverse: for what has a wrong forward mode."""
    change = dict(zip(traced.params, column, strict=True))
    return traced.in_order(vjp(_gradient(traced), traced.params)[1](change)[0])


def _gradient(traced: Traced) -> Callable[[Params], Params]:
    def loss(params: Params) -> Tensor:
        f = traced.outputs(params)
        return traced.likelihood.nll(f, traced.likelihood.canonical_targets(f, traced.targets)).sum()

    return grad(loss)


@final
@dataclass(frozen=True, eq=False)
class RecordedHessian(Recording[Prepared]):
    """The product with the Hessian, recorded."""

    @property
    def recipes(self) -> tuple[Callable[..., Tensors], ...]:
        """Forward over reverse where that is right."""
        return (second_derivative_by_adjoints if self.network.padded else second_derivative,)

    def _column(self, batch: Batch) -> list[Tensor]:
        return self._change

    def _ready(self, batch: Batch, halves: Split, kept: Tensors, size: int) -> Prepared:
        def product(block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
            columns = [self._gathered(halves.product(kept, self._spread(v))) for v in block.unbind(1)]
            return torch.stack(columns, dim=1)

        return Prepared(product, size)


@final
@dataclass(frozen=True, eq=False)
class Pearlmutter(Executor[Prepared]):
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
