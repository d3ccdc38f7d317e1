"""Which of three strategies a product over the data takes: what each costs, counted before a product is run.

Costs are in multiplications, from numbers known before a product is run. F is the work of a forward pass, counted once
on one example; a gradient is 3 F. With c cotangents and C columns, for one example:

- *traced*: F for what does not depend on the column, and 4 F a column: a layer's own weights and its inputs, each
  forward and back; the first layer has no inputs that change. Once for all examples, ``RECORDING`` for the graph.
- *explicit*: ``LOSS`` (F + c F + the explicit rows) to build, and 2 multiplications a column for each entry of the rows
  (at least as much as ``STREAM`` columns take: below, memory is the limit) and for those of the factors.

What fits the memory given is kept from one product to the next. Its making is then charged to ``PRODUCTS`` products,
the least that a solver asks for; what does not fit is charged to every product. A graph is always kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch
from torch.utils.flop_counter import FlopCounterMode

from lapwing.ground.data.inputs import Inputs, take
from lapwing.jacobian.layers.base import Cost
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network

Strategy = Literal["explicit", "traced", "autodiff"]
"""Explicit rows of J, a traced graph of which half is kept, or automatic differentiation again for every column."""

PRODUCTS = 50
"""Products that what is kept is charged to."""

STREAM = 4
"""Columns below which a product with explicit rows takes the time of reading them."""

LOSS = 1.5
"""Time of many small backward passes and of explicit rows, over that of the same multiplications in large ones."""

RECORDING = 2 * 10**8
"""Multiplications in whose time the graph of a product is recorded: tenths of a second, however small the network."""

TENSORS = 2
"""Tensors of the size of a layer's output that a traced product keeps for each layer."""


def multiplications(network: Network, inputs: Inputs) -> int:
    """Multiplications of a forward pass of one example; at least as many as there are weights.

    Args:
        network: The network.
        inputs: At least one example.
    """
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = NoModules()  # type: ignore[assignment]
    with torch.no_grad(), counter:
        network(take(inputs, slice(0, 1)))
    return max(counter.get_total_flops() // 2, network.layout.size)


@final
class NoModules:
    """In place of what tells a counter its module, by hooks that fail in networks with derivatives inside."""

    parents = ("Global",)

    def __enter__(self) -> None:
        """Nothing is hooked."""

    def __exit__(self, *_: object) -> None:
        """Nothing was hooked."""


@final
@dataclass(frozen=True)
class ExampleCost:
    """What one example takes in a product; made by ``ExampleCost.of``.

    Args:
        cotangents: Directions an example is pulled back along, c.
        forward: Multiplications of a forward pass, F.
        first: Multiplications of the first layer.
        layers: What its Jacobian takes layer by layer.
    """

    cotangents: int
    forward: int
    first: int
    layers: Cost

    @classmethod
    def of(cls, model: Model, inputs: Inputs, cotangents: int) -> ExampleCost:
        """Counted on the first of some examples: one forward and one backward pass.

        Args:
            model: The network and its likelihood.
            inputs: At least one example.
            cotangents: Directions an example is pulled back along, c.
        """
        one = take(inputs, slice(0, 1))
        multiplied = multiplications(model.network, one)
        forward = model.forward(one)
        factors = forward.layer_factors(torch.ones_like(forward.outputs).unsqueeze(0))
        counts = [factor.cost(cotangents) for factor in factors]
        first = counts[0].forward if counts else 0
        others = sum(model.network.params[name].numel() for name in model.survey.without_factors)
        if others:
            entries = cotangents * others
            counts.append(Cost(cotangents * multiplied, entries, 0, entries, 0, 0))
        layers = Cost(*(sum(numbers) for numbers in zip(*counts, strict=True)))
        return cls(cotangents, multiplied, first, layers)

    def numbers(self, strategy: Strategy) -> int:
        """Numbers kept between products."""
        return self.layers.held if strategy == "explicit" else TENSORS * self.layers.outputs

    def of_product(self, strategy: Strategy, columns: int, *, cached: bool) -> float:
        """Multiplications of one product with a block of columns.

        Args:
            strategy: ``"explicit"`` or ``"traced"``.
            columns: Columns C of the block.
            cached: Whether what does not depend on the columns is kept between products.
        """
        share = 1 / PRODUCTS if cached else 1.0
        if strategy == "traced":
            return share * self.forward + columns * (4.0 * self.forward - 2.0 * self.first)
        building = LOSS * ((1 + self.cotangents) * self.forward + self.layers.building)
        return share * building + 2.0 * (self.layers.rows * max(columns, STREAM) + self.layers.factors * columns)

    def cheaper(self, columns: int, numbers: int, examples: int, recording: int = RECORDING) -> Strategy:
        """The cheaper strategy; never *explicit* where one example takes more than a quarter of the room.

        Args:
            columns: Columns C of the block.
            numbers: Numbers there is room for.
            examples: Examples n of the data.
            recording: Multiplications in whose time the traced product is recorded.
        """
        if 4 * self.layers.held > numbers:
            return "traced"
        rows_fit = self.numbers("explicit") * examples <= numbers
        trace_fits = self.numbers("traced") * examples <= numbers
        explicit = self.of_product("explicit", columns, cached=rows_fit)
        traced = self.of_product("traced", columns, cached=trace_fits)
        traced += recording / (PRODUCTS * max(examples, 1))
        return "explicit" if explicit <= traced else "traced"

    def chunk(self, itemsize: int, budget: int) -> int:
        """Examples of whose traced product what is kept fits the budget, in bytes."""
        return max(1, budget // max(itemsize * self.numbers("traced"), 1))
