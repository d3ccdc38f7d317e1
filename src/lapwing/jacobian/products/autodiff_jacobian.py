"""Products by automatic differentiation again for every column: the strategy where nothing can be kept.

Reverse mode is what every operation has that was trained, also where ``torch.func`` or forward mode refuse.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp, vmap

from lapwing.ground.data.inputs import Inputs
from lapwing.ground.data.sources import Batch
from lapwing.ground.errors import UnsupportedError, reason_of
from lapwing.jacobian.forward_pass import along
from lapwing.jacobian.layers.capture import history
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.decompositions import twice_differentiable
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.network.serving import ALONE
from lapwing.likelihoods.base import COLUMNS
from lapwing.linear.model import Chunk

logger = logging.getLogger(__name__)


@final
class Reverse:
    """The derivative J of a function at some weights, from one forward pass whose graph is kept.

    Args:
        function: A function of the weights, run once.
        weights: The weights.

    Example:
        >>> there = Reverse(lambda w: w.square().sum()[None], torch.tensor([1.0, 2.0]))
        >>> there.pull(torch.ones(1)).tolist(), there.push(torch.ones(2)).tolist()
        ([2.0, 4.0], [6.0])
    """

    def __init__(self, function: Callable[[Tensor], Tensor], weights: Tensor) -> None:
        with torch.inference_mode(False), torch.enable_grad():
            self.weights = weights.detach().clone().requires_grad_()
            self.values = function(self.weights)

    def pull(self, cotangent: Tensor) -> Tensor:
        """``Jᵀ u``."""
        return derivative(self.values, self.weights, cotangent)

    def push(self, change: Tensor) -> Tensor:
        """``J v``, as the adjoint of the linear map ``u -> Jᵀ u``.

        Raises:
            UnsupportedError: If a gradient cannot be differentiated again.
        """
        cotangent, pulled = self._adjoint
        return derivative(pulled, cotangent, change)

    @cached_property
    def _adjoint(self) -> tuple[Tensor, Tensor]:
        """A cotangent that autograd tracks, and what it becomes when it is pulled back."""
        with torch.inference_mode(False), torch.enable_grad():
            cotangent = torch.zeros_like(self.values).requires_grad_()
            return cotangent, derivative(self.values, self.weights, cotangent, again=True)


def derivative(values: Tensor, at: Tensor, cotangent: Tensor, *, again: bool = False) -> Tensor:
    """The gradient of ``⟨u, values⟩`` in ``at``; zero where they do not depend on it.

    Args:
        values: Values with their graph, which is kept.
        at: What autograd tracks.
        cotangent: u.
        again: Whether the gradient can be differentiated in turn.

    Raises:
        UnsupportedError: If an operation has no gradient, or none that can be differentiated again.
    """
    if not values.requires_grad:
        return torch.zeros_like(at)
    try:
        total = along(values, cotangent)
        grads = torch.autograd.grad(
            total, at, retain_graph=True, create_graph=again, allow_unused=True, materialize_grads=True
        )
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as reason:
        raise refusal(str(reason).split("\n")[0]) from reason
    if again and any(node.name().endswith("Error") for node in history(grads[0])):
        # Backward passes do not reach this mark: they would take the derivative for zero, without a word.
        raise refusal("a gradient marked @once_differentiable")
    return grads[0]


def refusal(got: str) -> UnsupportedError:
    """What is said of an operation that cannot be differentiated often enough."""
    return UnsupportedError(
        "operations with a forward-mode derivative, or a gradient that can be differentiated again",
        got,
        "GGN() in KFAC(), Diagonal() or Full(), tuned by EvidenceGradient() or Validation(data): there one gradient is "
        "enough",
    )


PUSHED = (
    "cannot push columns forward (%s): going through the adjoint of the adjoint, one column after the other, each "
    "about two backward passes instead of one forward pass"
)
"""What is said once a network, whose columns are not pushed forward again."""


def forward_mode(
    network: Network,
    function: Callable[[Tensor], Float[Tensor, "*shape"]],
    block: Float[Tensor, "d k"],
    width: int,
    words: str,
    dim: int = 0,
) -> Float[Tensor, "..."] | None:
    """``J V`` beside the function itself, some columns at once; ``None`` where an operation has no forward mode.

    Which is said once a network, and not tried again.

    Args:
        network: The network; pushed at its weights.
        function: A function of its weights.
        block: V.
        width: Columns pushed at once, at most.
        words: What is said, with a place for the reason.
        dim: Where the columns are in the result.
    """
    if network.padded or words in network.noted:
        return None
    weights = network.weights

    def tangent(column: Float[Tensor, " d"]) -> Float[Tensor, "*shape"]:
        return jvp(function, (weights,), (column,))[1]

    try:
        with ALONE, twice_differentiable():
            return vmap(tangent, in_dims=1, out_dims=dim, chunk_size=width)(block)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as reason:
        logger.info(words, reason_of(reason))
        network.noted.add(words)
        return None


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

    def push(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "k n *event c"]:
        """``J V``, each column beside a forward pass; where that has no derivative, by two adjoints from then on."""
        pushed = forward_mode(self.model.network, self._function, block, self.width, PUSHED)
        if pushed is not None:
            return pushed
        return torch.stack([self._reverse.push(column) for column in block.unbind(1)])

    def pull(self, block: Float[Tensor, "k n *event c"]) -> Float[Tensor, "d k"]:
        """``Jᵀ U``: a backward pass a column."""
        return torch.stack([self._reverse.pull(cotangent) for cotangent in block], dim=1)

    def _function(self, weights: Float[Tensor, " d"]) -> Float[Tensor, "n *event c"]:
        network = self.model.network
        with twice_differentiable():
            outputs = network(self.inputs, network.with_weights(weights))
        return self.model.likelihood.canonical(outputs)

    @cached_property
    def _reverse(self) -> Reverse:
        return Reverse(self._function, self.model.network.weights)


def autodiff_chunk(model: Model, room: int, batch: Batch) -> tuple[Chunk, None]:
    """Each column pushed through the network again, and pulled back through it: keeping it saves nothing.

    Args:
        model: The network and its likelihood.
        room: Examples times columns that there is memory for.
        batch: No more examples than that.
    """
    width = max(1, min(COLUMNS, room // len(batch)))
    jacobian = Columnwise(model, batch.inputs, width)
    f = jacobian.outputs
    y = model.likelihood.canonical_targets(f, batch.targets)
    return Chunk(batch.inputs, f, y, jacobian.push, jacobian.pull, width), None
