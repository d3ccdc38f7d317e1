"""The Jacobian of a chunk of examples by a recorded graph: the strategy for few columns.

What is kept of a batch serves columns pushed forward and columns pulled back.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp, vjp

from lapwing.ground.data.sources import Batch
from lapwing.ground.layout import Params
from lapwing.jacobian.model import Model
from lapwing.jacobian.products.tracing.split import Groups
from lapwing.jacobian.products.tracing.tracer import Arguments, Tracer
from lapwing.linear.model import Chunk

OUTPUTS = 0
PUSHED = 1
PULLED = 2
"""Groups of results: ``f``, ``J v`` and ``Jᵀ u``, each computed without the others."""


def jacobian_tracer(model: Model) -> Tracer:
    """Records ``f``, ``J v`` and ``Jᵀ u``: ``J v`` in forward mode where that is right, else as an adjoint."""
    functions = (jacobian_by_adjoint,) if model.network.padded else (jacobian_by_forward_mode, jacobian_by_adjoint)
    return Tracer(model, functions)


def jacobian_by_forward_mode(given: Arguments) -> Groups:
    """``f``, ``J v`` pushed beside the forward pass, and ``Jᵀ u``."""
    f, pull = vjp(given.outputs, given.params)[:2]
    pushed = jvp(given.outputs, (given.params,), (given.change,))[1]
    (pulled,) = pull(given.cotangent)
    return (f,), (pushed,), given.in_order(pulled)


def jacobian_by_adjoint(given: Arguments) -> Groups:
    """The same, J as the adjoint of ``u -> Jᵀ u``: for what has no forward mode, or a wrong one."""
    f, pull = vjp(given.outputs, given.params)[:2]

    def pull_back(u: Tensor) -> Params:
        return pull(u)[0]

    push = vjp(pull_back, torch.zeros_like(f))[1]
    (pushed,) = push(given.change)
    (pulled,) = pull(given.cotangent)
    return (f,), (pushed,), given.in_order(pulled)


def traced_chunk(
    tracer: Tracer, autodiff: Callable[[Batch], tuple[Chunk, None]], batch: Batch
) -> tuple[Chunk, int | None]:
    """J of a chunk of examples by its recorded halves, and their bytes.

    Args:
        tracer: A ``jacobian_tracer``.
        autodiff: What to do where nothing can be recorded; kept, for what it takes, where others are that were
            recorded: else none would be.
        batch: The examples.
    """
    model = tracer.model
    prepared = tracer.prepare(batch)
    if prepared is None:
        chunk, _ = autodiff(batch)
        others = any(trace is not None for trace in tracer.traces.values())
        size = model.survey.bytes(1, model.network.like.itemsize) * len(batch)
        return chunk, size if others else None
    (f,) = prepared.results(OUTPUTS)

    def push(block: Float[Tensor, "d k"]) -> Float[Tensor, "k n *event c"]:
        columns = [prepared.results(PUSHED, change=column) for column in block.unbind(1)]
        return torch.stack([pushed for (pushed,) in columns])

    def pull(block: Float[Tensor, "k n *event c"]) -> Float[Tensor, "d k"]:
        columns = [prepared.weights(PULLED, cotangent=cotangent.contiguous()) for cotangent in block]
        return torch.stack(columns, dim=1)

    y = model.likelihood.canonical_targets(f, batch.targets)
    return Chunk(batch.inputs, f, y, push, pull, 1), prepared.bytes
