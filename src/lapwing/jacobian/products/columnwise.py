"""Products with the Jacobian of a batch by plain automatic differentiation, one column after the other."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp, vmap

from lapwing.ground.types import Inputs
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import twice_differentiable
from lapwing.jacobian.network.unchanged import ALONE
from lapwing.jacobian.products.reverse import Reverse
from lapwing.likelihoods.cotangents import COLUMNS

logger = logging.getLogger(__name__)

PUSHED = (
    "cannot push columns forward (%s): going through the adjoint of the adjoint, one column after the other, each "
    "about two backward passes instead of one forward pass"
)
"""What is said once a network."""


@final
@dataclass(frozen=True, eq=False)
class Columnwise:
    """The Jacobian of one batch, each column through the network again; one forward pass is kept to pull back.

    Args:
        model: The network and its likelihood.
        inputs: The n examples of the batch.
        width: Columns pushed at once, at most.
    """

    model: Model
    inputs: Inputs
    width: int = COLUMNS

    @property
    def outputs(self) -> Float[Tensor, "n *event c"]:
        """Canonical outputs."""
        return self._reverse.values.detach()

    def push(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "m k"]:
        """``J V``, each column beside a forward pass; where that has no derivative, as the adjoint of the adjoint."""
        if not self.model.network.padded:
            weights = self.model.network.weights

            def tangent(column: Float[Tensor, " d"]) -> Float[Tensor, " m"]:
                return jvp(self._function, (weights,), (column,))[1].flatten()

            try:
                with ALONE:
                    return vmap(tangent, in_dims=1, out_dims=1, chunk_size=self.width)(block)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as reason:
                level = logging.DEBUG if PUSHED in self.model.network.noted else logging.INFO
                logger.log(level, PUSHED, reason)
                self.model.network.noted.add(PUSHED)
        return torch.stack([self._reverse.push(column).flatten() for column in block.unbind(1)], dim=1)

    def pull(self, block: Float[Tensor, "m k"]) -> Float[Tensor, "d k"]:
        """``Jᵀ U``: a backward pass a column."""
        shape = self._reverse.values.shape
        return torch.stack([self._reverse.pull(column.view(shape)) for column in block.unbind(1)], dim=1)

    def _function(self, weights: Float[Tensor, " d"]) -> Float[Tensor, "n *event c"]:
        with twice_differentiable():
            outputs = self.model.network(self.inputs, self.model.network.with_weights(weights))
        return self.model.likelihood.canonical(outputs)

    @cached_property
    def _reverse(self) -> Reverse:
        return Reverse.of(self._function, self.model.network.weights)
