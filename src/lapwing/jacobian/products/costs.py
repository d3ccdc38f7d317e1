"""What a product costs in each form, in multiplications, from numbers known before it is run: the cost rule.

F is the work of a forward pass, counted once on one example; a gradient is 3 F. With c cotangents and C columns, for
one example:

- *split*: F for what does not depend on the column, and 4 F a column: a layer's own weights and its inputs, each
  forward and back; the first layer has no inputs that change.
- *layers*: ``LOSS`` (F + c F + the explicit rows) to build, and 2 multiplications a column for each entry of the rows
  (at least as much as ``STREAM`` columns take: below, memory is the limit) and for those of the factors.

What fits the memory given is kept from one product to the next. Its making is then charged to ``PRODUCTS`` products,
the least that a solver asks for; what does not fit is charged to every product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import torch
from torch.utils.flop_counter import FlopCounterMode

from lapwing.ground.data import take
from lapwing.ground.types import Inputs
from lapwing.jacobian.layers.factors import Factor, Outer, Rows, prefers_factors
from lapwing.jacobian.layers.lookup import Lookup
from lapwing.jacobian.model import Model

Form = Literal["layers", "split", "plain"]
"""How a product is executed."""

PRODUCTS = 50
"""Products that what is kept is charged to."""

STREAM = 4
"""Columns below which a product with explicit rows takes the time of reading them."""

LOSS = 1.5
"""Time of many small backward passes and of explicit rows, over that of the same multiplications in large ones."""


TENSORS = 2
"""Tensors of the size of a layer's output that the split keeps for each layer."""


@final
@dataclass(frozen=True)
class Work:
    """What one example takes.

    Args:
        forward: Multiplications of a forward pass, F.
        first: Those of its first layer.
        building: Multiplications that make the explicit rows of all cotangents.
        rows: Entries of the explicit rows.
        factors: Multiplications of a column by factors.
        cotangents: Cotangents c.
        kept: Numbers kept between products: layer by layer, and by the split.
    """

    forward: int
    first: int
    building: int
    rows: int
    factors: int
    cotangents: int
    kept: tuple[int, int]

    @classmethod
    def of(cls, model: Model, inputs: Inputs, cotangents: int) -> Work:
        """Count on the first example of ``inputs``: one forward and one backward pass.

        Args:
            model: The network and its likelihood.
            inputs: At least one example.
            cotangents: Directions an example is pulled back along, c.
        """
        one, network = take(inputs, slice(0, 1)), model.network
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            network(one)
        forward = model.forward(one)
        factors = forward.layer_factors(torch.ones_like(forward.outputs).unsqueeze(0))
        loose = cotangents * sum(network.params[name].numel() for name in model.survey.loose)
        counts = [count(factor, cotangents) for factor in factors]
        work = max(counter.get_total_flops() // 2, network.layout.size)
        return cls(
            work,
            counts[0].forward if counts else 0,
            sum(each.building for each in counts) + (cotangents * work if loose else 0),
            sum(each.rows for each in counts) + loose,
            sum(each.factors for each in counts),
            cotangents,
            (sum(each.held for each in counts) + loose, TENSORS * sum(each.outputs for each in counts)),
        )

    def size(self, form: Form) -> int:
        """Numbers kept between products for one example, in a form."""
        return self.kept[form != "layers"]

    def cost(self, form: Form, columns: int, *, kept: bool) -> float:
        """Multiplications of one product with a block of columns, for one example.

        Args:
            form: ``"layers"`` or ``"split"``.
            columns: Columns C of the block.
            kept: Whether what does not depend on the columns is kept between products.
        """
        share = 1 / PRODUCTS if kept else 1.0
        if form == "split":
            return share * self.forward + columns * (4.0 * self.forward - 2.0 * self.first)
        building = LOSS * ((1 + self.cotangents) * self.forward + self.building)
        return share * building + 2.0 * (self.rows * max(columns, STREAM) + self.factors * columns)

    def chunk(self, itemsize: int, budget: int) -> int:
        """Examples whose split fits the budget, in bytes."""
        return max(1, budget // max(itemsize * self.kept[1], 1))

    def choose(self, columns: int, numbers: int, examples: int) -> Form:
        """The cheaper form; never *layers* where one example takes more than a quarter of the room.

        Args:
            columns: Columns C of the block.
            numbers: Numbers there is room for.
            examples: Examples n of the data.
        """
        layers, split = (
            self.cost(form, columns, kept=self.size(form) * examples <= numbers) for form in ("layers", "split")
        )
        return "layers" if layers <= split and 4 * self.kept[0] <= numbers else "split"


@final
class Count(NamedTuple):
    """What one layer takes for one example, in multiplications and numbers.

    Args:
        building: To make explicit rows.
        rows: Entries of explicit rows.
        factors: A column by factors.
        held: Numbers that are kept.
        outputs: Numbers at the outputs of the layer.
        forward: Multiplications of the layer in a forward pass.
    """

    building: int
    rows: int
    factors: int
    held: int
    outputs: int
    forward: int


def count(factor: Factor, cotangents: int) -> Count:
    """What a layer takes for each example.

    Args:
        factor: Its factor of one example and one cotangent.
        cotangents: Cotangents k there will be.
    """
    k = cotangents
    if isinstance(factor, Rows):
        entries = k * factor.g.shape[2]
        return Count(0, entries, 0, entries, 0, 0)
    if isinstance(factor, Lookup):
        uses, width = factor.index.shape[1], factor.shape[1]
        return Count(0, 0, k * uses * width, uses * (k * width + 4), uses * width, 0)
    assert isinstance(factor, Outer)
    _, _, p, o, t = factor.g.shape
    i = factor.width if factor.weight is not None else 1
    if p == 1 and factor.weight is not None and prefers_factors(k, i, t):
        return Count(0, 0, t * o * (i + k), t * (i + k * o), o * t, o * i * t)
    entries = k * p * o * (i + int(len(factor.names) > 1))
    return Count(entries * t, entries, 0, entries, p * o * t, p * o * i * t)
