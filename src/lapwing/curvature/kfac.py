"""Kronecker-factored curvature: for each layer, input second moment ⊗ gradient second moment, from layer factors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.curvature.sums import Held
from lapwing.ground.errors import ConfigError
from lapwing.jacobian.layers.factors import Factor, Outer, Rows
from lapwing.jacobian.layers.lookup import Lookup
from lapwing.jacobian.network.network import Network
from lapwing.linalg import BlockDiagonal, Dense, Diagonal, Kronecker, Structured

Sharing: TypeAlias = Literal["expand", "reduce"]
Bias: TypeAlias = Literal["joint", "separate"]

EXACT = 1024
"""Largest block of a parameter without Kronecker structure that is kept exact; beyond it only the diagonal is."""


@dataclass(eq=False)
class _Moments:
    """Both second moments of one layer, being added up over ``count`` columns of inputs."""

    left: Tensor | float = 0.0
    right: Tensor | float = 0.0
    count: int = 0


class KroneckerSum:
    """Adds up KFAC: a block ``G ⊗ A`` for each linear map, convolution and embedding, an exact block for each norm.

    With n examples and t positions that share the weight, *expand* takes every position for an example of its own,
    ``G = sum_ntk g gᵀ, A = sum_nt a aᵀ / (n t)``; *reduce* averages the inputs and adds up the gradients over the
    positions first (Martens & Grosse 2015, section 3; Eschenhagen et al. 2023, equations 14 and 22). An embedding
    always expands: its A is then diagonal, the frequency of each row. All is added up in float64, as in ``DenseSum``.

    Args:
        network: The network whose weights are uncertain.
        sharing: How positions that share a weight are treated.
        bias: Whether a bias is a last input of its weight's block, or has a block of its own.

    Raises:
        ConfigError: If only single entries of a parameter are uncertain.
    """

    floats = 0

    def __init__(self, network: Network, sharing: Sharing = "expand", bias: Bias = "joint") -> None:
        if network.index is not None:
            raise ConfigError(
                "whole parameters to be uncertain for KFAC",
                "a subnetwork of single weights",
                "structure Full or Diagonal, or weights=Names(...)",
            )
        self._network = network
        self._sharing: Sharing = sharing
        self._bias: Bias = bias
        self._sums: dict[tuple[str, ...], _Moments | Tensor] = {}
        self._index: dict[tuple[str, ...], Tensor] = {}

    def add(self, factors: Iterator[Factor], *, again: bool = False) -> None:
        """Take in the factors of one block of cotangents of one chunk; its inputs only with the first block."""
        for factor in factors:
            wide = factor.double()
            for part in separated(wide) if self._bias == "separate" else (wide,):
                if part.names not in self._index:
                    self._index[part.names] = block_index(part, self._network)
                if isinstance(part, Rows):
                    self._add_exact(part)
                elif isinstance(part, Outer | Lookup):
                    held = self._sums.setdefault(part.names, _Moments())
                    if isinstance(held, _Moments):
                        held.left = held.left + gradient_moment(part, self._sharing)
                        if not again:
                            right, count = input_moment(part, self._sharing)
                            held.right = held.right + right
                            held.count += count

    def _add_exact(self, part: Rows) -> None:
        rows = part.g.flatten(0, 1)
        new = rows.mT @ rows if rows.shape[1] <= EXACT else rows.square().sum(0)
        held = self._sums.get(part.names)
        self._sums[part.names] = held + new if isinstance(held, Tensor) else new

    def result(self) -> Held:
        """The blocks, in order of first use."""
        blocks = tuple(as_block(held) for held in self._sums.values())
        return Held(BlockDiagonal(blocks, tuple(self._index.values())), tuple(self._sums))


def as_block(held: _Moments | Tensor) -> Structured:
    """What was added up for one layer, as an operator."""
    if isinstance(held, _Moments):
        return Kronecker(torch.as_tensor(held.left), torch.as_tensor(held.right)).scaled(1.0 / max(held.count, 1))
    return Dense(held) if held.ndim == 2 else Diagonal(held)


def separated(factor: Factor) -> tuple[Factor, ...]:
    """A factor whose bias has a block of its own."""
    if isinstance(factor, Outer) and factor.weight is not None and factor.bias is not None:
        return replace(factor, bias=None), replace(factor, weight=None)
    return (factor,)


def block_index(factor: Factor, network: Network) -> Int[Tensor, " d"]:
    """Where the entries of a factor's block lie in the flat vector, in the order in which its operator sees them."""
    flat = network.part(factor.names, torch.arange(network.layout.size))
    if isinstance(factor, Outer):
        flat = factor.matrix(flat)
    elif isinstance(factor, Lookup):
        flat = flat.view(factor.shape).mT
    return flat.flatten().to(network.like.device)


def gradient_moment(factor: Outer | Lookup, sharing: Sharing) -> Float[Tensor, "*p o o"]:
    """Second moment of the gradients of one layer, added up."""
    if isinstance(factor, Lookup):
        g = factor.uses[2].flatten(0, 1)
        return g.mT @ g
    if sharing == "reduce":
        g = factor.g.sum(-1)
        return torch.einsum("nkpo,nkpq->poq", g, g)
    g = factor.g if factor.g.stride(0) >= factor.g.stride(1) else factor.g.transpose(0, 1)  # as it lies in memory
    return sum_outer(g.flatten(0, 1))


def input_moment(factor: Outer | Lookup, sharing: Sharing) -> tuple[Tensor, int]:
    """Second moment of the inputs of one layer, added up, and over how many inputs; for embeddings its diagonal."""
    if isinstance(factor, Lookup):
        row = factor.uses[1]
        return torch.bincount(row, minlength=factor.shape[0]).to(factor.g), len(row)
    n, t = len(factor.g), factor.positions
    if sharing == "reduce":
        a = factor.columns.mean(-1)
        return torch.einsum("npi,npj->pij", a, a), n
    return sum_outer(factor.columns), n * t


def sum_outer(x: Float[Tensor, "n p i t"]) -> Float[Tensor, "p i i"]:
    """``sum_nt x xᵀ`` for each group: one product, or one an example where a copy in one piece would be larger."""
    if x.shape[2] < x.shape[3] and x.stride(0) > x.stride(2):
        return (x @ x.mT).sum(0)
    flat = x.permute(1, 2, 0, 3).flatten(2)
    return flat @ flat.mT
