"""The part of the curvature that the least certain outputs make, which is nearly all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.dense import jacobian_rows
from lapwing.curvature.ggn import GGN
from lapwing.curvature.sums import chunk_size, raw
from lapwing.ground.data import concatenated, take
from lapwing.ground.errors import check_count
from lapwing.ground.types import Inputs
from lapwing.jacobian.model import Model
from lapwing.likelihoods import Likelihood
from lapwing.linalg import LowRank
from lapwing.linear.preconditioners.base import CurvatureRecipe, check_rows, training_of
from lapwing.linear.problem import Problem

Seen: TypeAlias = tuple[Inputs, Tensor, Tensor]
"""Inputs and targets of some examples, and the eigenvalues ``[n, m]`` of their output Hessians."""


@final
@dataclass(frozen=True)
class TopRows(CurvatureRecipe):
    """``P = s Σ_r λ_r (J_nᵀ v_r)(J_nᵀ v_r)ᵀ + A`` over the largest eigenpairs ``B_n v = λ v`` of all output Hessians.

    A trained classifier is sure of most examples: their output Hessian is next to nothing. Every row is exact and costs
    a backward pass of one example, where a column of ``PivotedCholesky`` costs a product with all data.

    Args:
        rank: Rows, at most; of equal ones any.
        max_bytes: Largest factor ``[d, rank]`` it will make.

    Raises:
        ConfigError: If there is no row.
        TooLargeError: If the factor would be larger; nothing is computed.

    Cost:
        A forward pass over the data with an eigendecomposition of every output Hessian, ``O(n c³)``; a forward and c
        backward passes for at most ``rank`` examples, ``d rank²`` once; memory ``d rank`` numbers.

    Example:
        >>> import lapwing as lw
        >>> lw.CG(preconditioner=TopRows(500)).preconditioner
        TopRows(rank=500, max_bytes=2147483648)
    """

    rank: int
    max_bytes: int = 2**31

    def __post_init__(self) -> None:
        check_count("rank", self.rank)

    def curvature(self, problem: Problem) -> LowRank:
        """``Σ_r λ_r (J_nᵀ v_r)(J_nᵀ v_r)ᵀ``."""
        training = training_of(problem, self)
        check_rows(training, self.rank, self.max_bytes, "TopRows with a smaller rank, or a larger max_bytes")
        inputs, targets, chosen = self._selected(training)
        rows: list[Tensor] = []
        with torch.no_grad():
            for count in chosen.unique().tolist():
                rows += _rows(training, inputs, targets, (chosen == count).nonzero()[:, 0], count)
        return LowRank(torch.cat(rows).mT.contiguous())

    def _selected(self, training: Model) -> tuple[Inputs, Tensor, Tensor]:
        """The examples that have one of the largest eigenvalues, and how many each has."""
        found: list[Seen] = []
        with torch.no_grad():
            for batch in training.data:
                f = training.likelihood.canonical(training.network(batch.inputs))
                found.append((batch.inputs, batch.targets, _eigenvalues(training.likelihood, f, batch.targets)))
                found = [self._kept(found)]
        ((inputs, targets, values),) = found
        return inputs, targets, _largest(values, self.rank).sum(1)

    def _kept(self, seen: list[Seen]) -> Seen:
        """Those that may still have one of the largest."""
        inputs, targets, values = zip(*seen, strict=True)
        values = torch.cat(values)
        index = _largest(values, self.rank).any(1).nonzero()[:, 0]
        return take(concatenated(list(inputs)), index), torch.cat(targets)[index], values[index]


def _eigenvalues(likelihood: Likelihood, f: Tensor, targets: Tensor) -> Float[Tensor, "n m"]:
    """Eigenvalues of the output Hessian of each example, of all its positions."""
    y = likelihood.canonical_targets(f, targets)
    return torch.linalg.eigvalsh(likelihood.hessian(f.double(), y)).flatten(1)


def _largest(values: Float[Tensor, "n m"], count: int) -> Tensor:
    """Where the ``count`` largest positive entries are."""
    flat = values.flatten()
    first = flat.topk(min(count, len(flat))).indices
    return torch.zeros_like(flat, dtype=torch.bool).index_fill(0, first, True).view_as(values) & (values > 0)


def _rows(training: Model, inputs: Inputs, targets: Tensor, index: Tensor, count: int) -> list[Float[Tensor, "r d"]]:
    """``√λ J_nᵀ v`` of the ``count`` largest eigenpairs of some examples."""
    network, likelihood = training.network, training.likelihood
    size = chunk_size(training, GGN(), network.layout.size)
    rows: list[Tensor] = []
    for part in index.split(size):
        forward = training.forward(take(inputs, part))
        f = likelihood.canonical(forward.outputs)
        columns = _leading(likelihood.hessian(f.double(), likelihood.canonical_targets(f, targets[part])), count)
        cotangents = columns.to(f).view(count, *f.shape)
        rows.append(jacobian_rows(network, forward.factors(raw(likelihood, cotangents))).flatten(0, 1))
    return rows


def _leading(hessian: Float[Tensor, "n *event c c"], count: int) -> Float[Tensor, "k n m"]:
    """``√λ v`` of the largest eigenpairs of each example, as cotangents of all its positions."""
    n, c = len(hessian), hessian.shape[-1]
    values, vectors = torch.linalg.eigh(hessian.reshape(n, -1, c, c))
    found, place = values.flatten(1).topk(count)
    scaled = (
        vectors.mT.flatten(1, 2).gather(1, place[..., None].expand(n, count, c)) * found.clamp_min(0).sqrt()[..., None]
    )
    cotangents = scaled.new_zeros(n, count, values.shape[1], c)
    cotangents.scatter_(2, (place // c)[..., None, None].expand(n, count, 1, c), scaled.unsqueeze(2))
    return cotangents.flatten(2).movedim(1, 0)
