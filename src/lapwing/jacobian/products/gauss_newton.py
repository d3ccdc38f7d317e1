"""The generalised Gauss-Newton matrix as a matrix-free operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.jacobian.model import Model
from lapwing.jacobian.products.costs import Form
from lapwing.jacobian.products.linear import Linear, Shift
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.jacobian.products.products import MEMORY, WORKING, Part
from lapwing.linalg import FunctionOperator, Operator


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
        model: The network, its likelihood, and the data; these are read once a product, or once in all.
        memory: Bytes a product may occupy, what is kept included.
        form: Form to use whatever the rule says; ``None`` leaves it to the rule.
        shift: Where B is taken; ``None`` for the trained weights. J is that of the trained weights in any case.

    Cost:
        A column costs 4/3 of a gradient by the split, once prepared; see ``costs`` for all forms. At a shift, each
        chunk that was not seen there before takes half a column more.
    """

    model: Model
    memory: int = MEMORY
    form: Form | None = None
    shift: Shift | None = None
    linearisation: Linearisation = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "linearisation", Linearisation(self.model, self.memory, self.form))

    def at(self, weights: Float[Tensor, " d"], *, affine: bool = True) -> GGNProduct:
        """The product with B at ``h(w, ·)``, the outputs of the linearised network; what is kept is shared.

        Args:
            weights: w.
            affine: Whether ``h(w, x) = f(x) + J (w - w̃)``, or ``J w`` without the outputs at the trained weights w̃.
        """
        change = weights - self.model.network.weights if affine else weights
        return self.shifted(Shift(change, affine, self.memory // WORKING))

    def shifted(self, shift: Shift) -> GGNProduct:
        """The product with B at a shift; what is kept is shared."""
        shifted = replace(self, shift=shift)
        object.__setattr__(shifted, "linearisation", self.linearisation)
        return shifted

    @property
    def shape(self) -> tuple[int, int]:
        """The uncertain weights d, twice."""
        return (self.model.network.size, self.model.network.size)

    @property
    def T(self) -> GGNProduct:
        """The operator itself: it is symmetric."""
        return self

    @property
    def _like(self) -> Tensor:
        return self.model.network.like

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
        product = partial(chunk.product, self.model.likelihood.bending(self._outputs(chunk), chunk.targets))
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
            total += chunk.product(self.model.likelihood.bending(h, chunk.targets), block)
        return total
