"""Directions in the outputs, a block at a time: what is pulled back through a model."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

COLUMNS = 64
"""Most cotangents pulled back at once: bounds the memory of networks with many outputs."""


def by_position(
    columns: Float[Tensor, "r n *event c"], event_dim: int, width: int = COLUMNS
) -> Iterator[Float[Tensor, "k n *event c"]]:
    """Columns of a root that acts on each event position alone, as cotangents of whole outputs."""
    if event_dim == 0:
        yield from columns.split(width)
        return
    flat = columns.flatten(2, 1 + event_dim)
    for position in range(flat.shape[2]):
        for block in flat[:, :, position].split(width):
            cotangent = torch.zeros(len(block), *flat.shape[1:], dtype=flat.dtype, device=flat.device)
            cotangent[:, :, position] = block
            yield cotangent.view(len(block), *columns.shape[1:])


def identity_cotangents(outputs: Float[Tensor, "n *event c"]) -> Iterator[Float[Tensor, "c n *event c"]]:
    """The c unit cotangents of each event position in turn: together they pull back the whole Jacobian."""
    c = outputs.shape[-1]
    eye = torch.eye(c, dtype=outputs.dtype, device=outputs.device)
    columns = eye.view(c, *(1,) * (outputs.ndim - 1), c).expand(c, *outputs.shape)
    yield from by_position(columns, outputs.ndim - 2, width=c)
