"""Rows of the Jacobian for single outputs of single examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.curvature.dense import jacobian_rows
from lapwing.curvature.sums import BUDGET, raw
from lapwing.ground.data import chunks, count, take
from lapwing.ground.types import Inputs
from lapwing.jacobian.model import Model


@final
@dataclass(frozen=True, eq=False)
class Pairs:
    """Some (example, output) pairs.

    Args:
        inputs: One example a pair.
        examples: Its number in the pass over the data that chose it.
        outputs: Its output, counted over all event positions.
    """

    inputs: Inputs
    examples: Int[Tensor, " m"]
    outputs: Int[Tensor, " m"]

    def __len__(self) -> int:
        return len(self.outputs)

    def at(self, index: slice | Tensor) -> Pairs:
        """Some of them."""
        return Pairs(take(self.inputs, index), self.examples[index], self.outputs[index])


def pair_rows(model: Model, pairs: Pairs) -> Float[Tensor, "m d"]:
    """``∇_θ f_i(x)`` for each pair (x, i).

    Args:
        model: The network and its likelihood.
        pairs: The pairs.

    Cost:
        One forward and one backward pass of each example.
    """
    network, likelihood = model.network, model.likelihood
    size = model.chunk(1, BUDGET, network.layout.size)
    rows = network.like.new_empty(len(pairs), network.size)
    for place, part in chunks(pairs.inputs, min(size, count(pairs.inputs))):
        forward = model.forward(part)
        f = likelihood.canonical(forward.outputs)
        chosen = pairs.outputs[place].to(f.device)[:, None]
        cotangent = torch.zeros_like(f).flatten(1).scatter_(1, chosen, 1.0).view_as(f)
        rows[place] = jacobian_rows(network, forward.factors(raw(likelihood, cotangent[None])))[:, 0]
    return rows
