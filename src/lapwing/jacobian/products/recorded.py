"""The linearised network recorded: what it keeps of a batch serves columns pushed forward and columns pulled back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jvp, vjp

from lapwing.ground.data import Batch
from lapwing.jacobian.products.recording import Recording, Traced
from lapwing.jacobian.products.split import Split, Tensors
from lapwing.linear.model import Chunk


def forward(traced: Traced, *column: Tensor) -> Tensors:
    """``f``, ``J v`` pushed beside the forward pass, and ``Jᵀ u``."""
    change = dict(zip(traced.params, column, strict=False))
    f, pull = vjp(traced.outputs, traced.params)[:2]
    moved = jvp(traced.outputs, (traced.params,), (change,))[1]
    return (f, moved, *traced.in_order(pull(column[-1])[0]))


def adjoint(traced: Traced, *column: Tensor) -> Tensors:
    """The same, J as the adjoint of ``u -> Jᵀ u``: for what has no forward mode, or a wrong one."""
    change = dict(zip(traced.params, column, strict=False))
    f, pull = vjp(traced.outputs, traced.params)[:2]
    push = vjp(lambda u: pull(u)[0], torch.zeros_like(f))[1]
    return (f, push(change)[0], *traced.in_order(pull(column[-1])[0]))


@final
@dataclass(frozen=True, eq=False)
class Recorded(Recording[Chunk]):
    """``f``, ``J v`` and ``Jᵀ u`` of a chunk, v and u being the column: either is computed without the other."""

    @property
    def recipes(self) -> tuple[Callable[..., Tensors], ...]:
        """Forward mode where it is right, else adjoints."""
        return (adjoint,) if self.model.network.padded else (forward, adjoint)

    @cached_property
    def _event(self) -> torch.Size:
        """Shape of the canonical outputs of one example."""
        return self.model.likelihood.canonical(torch.empty(1, *self.model.survey.output, device="meta")).shape[1:]

    def _column(self, batch: Batch) -> list[Tensor]:
        return [*self._change, self.model.network.like.new_zeros(len(batch), *self._event)]

    def _unrecorded(self, batch: Batch) -> Chunk:
        """A plain chunk; kept, for what it takes, where others are that were recorded: else none would be."""
        chunk = self.plain.prepare(batch)
        if not any(self.traces.values()):
            return chunk
        return replace(chunk, bytes=self.model.survey.bytes(1, self.model.network.like.element_size()) * len(batch))

    def _ready(self, batch: Batch, halves: Split, kept: Tensors, size: int) -> Chunk:
        names, no_change = self.model.network.names, [None] * len(self.model.network.names)
        forth, back = halves.only(1, 2), halves.only(2, 2 + len(names))
        (f,) = halves.only(0, 1).product(kept, [*no_change, None])
        y = self.model.likelihood.canonical_targets(f, batch.targets)

        def push(block: Float[Tensor, "d k"]) -> Float[Tensor, "k n *event c"]:
            return torch.cat([torch.stack(forth.product(kept, [*self._spread(v), None])) for v in block.unbind(1)])

        def pull(block: Float[Tensor, "k n *event c"]) -> Float[Tensor, "d k"]:
            pulled = [back.product(kept, [*no_change, u.contiguous()]) for u in block]
            return torch.stack([self._gathered(moved) for moved in pulled], dim=1)

        return Chunk(batch.inputs, f, y, push, pull, 1, size)
