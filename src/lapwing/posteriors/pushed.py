"""Outputs of the linear model around a network, at draws of its weights."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.ggn import COLUMNS
from lapwing.curvature.sums import BUDGET
from lapwing.ground.data import chunks, count
from lapwing.ground.types import Inputs
from lapwing.jacobian.model import Model
from lapwing.jacobian.products.jacobian import BatchJacobian


def pushed(
    model: Model, inputs: Inputs, draws: Float[Tensor, "d k"]
) -> tuple[Float[Tensor, "n *event c"], Float[Tensor, "n *event c k"]]:
    """Canonical outputs f, and by how much each deviation of the weights moves them: ``J ζ``.

    Args:
        model: The network and its likelihood.
        inputs: n examples.
        draws: ζ, one a column.

    Cost:
        A forward pass and a product with the Jacobian, which takes about two forward passes a column, or a backward
        pass an output. Beside the result, memory of a chunk of inputs, about 128 MiB.
    """
    size = model.chunk(max(model.width, min(draws.shape[1], COLUMNS)), BUDGET)
    means: list[Tensor] = []
    moved: list[Tensor] = []
    for _, part in chunks(inputs, min(size, count(inputs))):
        f = model.likelihood.canonical(model.network(part))
        means.append(f)
        moved.append(BatchJacobian(model, part).push(draws).view(*f.shape, -1))
    return torch.cat(means), torch.cat(moved)
