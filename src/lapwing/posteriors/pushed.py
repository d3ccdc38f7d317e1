"""Outputs of the linear model around a network, at draws of its weights."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.ggn import COLUMNS
from lapwing.curvature.sums import BUDGET
from lapwing.ground.data import chunks, count
from lapwing.ground.types import Inputs
from lapwing.jacobian.layers.layers import Survey
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.jacobian import BatchJacobian
from lapwing.likelihoods import Likelihood


def pushed(
    network: Network, survey: Survey, likelihood: Likelihood, inputs: Inputs, draws: Float[Tensor, "d k"]
) -> tuple[Float[Tensor, "n *event c"], Float[Tensor, "n *event c k"]]:
    """Canonical outputs f, and by how much each deviation of the weights moves them: ``J ζ``.

    Args:
        network: The network.
        survey: What is known of its layers.
        likelihood: Says where the outputs' axes are.
        inputs: n examples.
        draws: ζ, one a column.

    Cost:
        A forward pass and a product with the Jacobian, which takes about two forward passes a column, or a backward
        pass an output. Beside the result, memory of a chunk of inputs, about 128 MiB.
    """
    width = max(survey.output.numel(), min(draws.shape[1], COLUMNS))
    size = survey.chunk(width, network.like.itemsize, BUDGET)
    means: list[Tensor] = []
    moved: list[Tensor] = []
    for _, part in chunks(inputs, min(size, count(inputs))):
        f = likelihood.canonical(network(part))
        means.append(f)
        moved.append(BatchJacobian(network, survey, likelihood, part).push(draws).view(*f.shape, -1))
    return torch.cat(means), torch.cat(moved)
