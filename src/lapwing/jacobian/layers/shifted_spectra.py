"""Covariances of a layer's outputs under many priors at once: what does not depend on the prior is made once.

With a Kronecker product ``G ⊗ A`` for its curvature a layer has, in the eigenbasis of both factors,

    J (s G ⊗ A + δ)⁻¹ Jᵀ = Σ_tt' Σ_vw (g_tv g_t'v) (a_tw a_t'w) / (s λ_v μ_w + δ)

for gradients g and inputs a at positions t. Eigenvalues are replaced by pairs of nodes about them, so that the two sums
in brackets are made once for each pair of nodes, whatever the number of priors δ, and no matrix of weights is written.
Where positions are many it is, and the weights are put together by the product ``λ μ`` of their eigenvalues.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

SPACING = 0.4
"""Logarithms between two nodes: a variance is at most ``SPACING² / 8`` too small, two percent, and in practice a
thousandth."""

ZERO = 1e-3
"""Eigenvalues of the curvature that are smaller, relative to the weakest prior, count as none."""

VARIANCES = 2**27
"""Bytes that variances of weights under all precisions may take at a time, in float64 (128 MiB)."""

GRAMS = 2**25
"""Bytes that products of gradients between positions may take at a time (32 MiB)."""

SEGMENT = 128
"""Weights of nearly the same variance whose rows are multiplied at a time, at most."""

MANY = 2**15
"""Weights from which these are put together: of fewer their variances are made."""


class Nodes(NamedTuple):
    """Eigenvalues between pairs of nodes.

    Args:
        values: The nodes, ascending, 0 the first of them where there are eigenvalues that count as none.
        order: The eigenvalues as they ascend, by their places.
        starts: Of each node but the last, how many of them come before it; and how many there are.
        lower: Of each eigenvalue in that order, its part at the node below; the rest is at the node above.
    """

    values: Float[Tensor, " j"]
    order: Int[Tensor, " v"]
    starts: list[int]
    lower: Float[Tensor, " v"]

    def grams(self, rows: Float[Tensor, "n r v"]) -> Float[Tensor, "j n r r"]:
        """``Σ_v w_jv x_v x_vᵀ`` of each node for columns x and their parts w at it."""
        found = rows.new_zeros(len(self.values), len(rows), rows.shape[1], rows.shape[1])
        columns = rows[..., self.order]
        below = self.lower.to(rows)
        for node, (start, stop) in enumerate(pairwise(self.starts)):
            if start == stop:
                continue
            part = columns[..., start:stop]
            if self.values[node] == 0.0:
                found[node] = part @ part.mT
                continue
            found[node] += (part * below[start:stop]) @ part.mT
            if node + 1 < len(self.values):
                found[node + 1] += (part * (1.0 - below[start:stop])) @ part.mT
        return found


class Segments(NamedTuple):
    """Weights in the order of their eigenvalues, each between the least and the largest of its segment.

    Args:
        order: Places of the weights of each segment; what is beyond the last of them has no part.
        parts: Part of each at the least of its segment, and at the largest.
        values: The least and the largest.
    """

    order: Int[Tensor, "s w"]
    parts: Float[Tensor, "s 2 w"]
    values: Float[Tensor, "s 2"]

    def grams(self, rows: Float[Tensor, "k d"]) -> Float[Tensor, "s 2 k k"]:
        """``R diag(parts) Rᵀ`` of each segment."""
        chosen = rows.index_select(1, self.order.flatten().to(rows.device)).view(len(rows), *self.order.shape)
        columns = chosen.transpose(0, 1).contiguous()
        weighed = [(columns * part[:, None]) @ columns.mT for part in self.parts.to(rows).unbind(1)]
        return torch.stack(weighed, 1)


@final
@dataclass(frozen=True, eq=False)
class ShiftedSpectra:
    """The eigenvalues ``s λ_v μ_w + δ`` of several precisions: one Kronecker product, scaled and shifted.

    Args:
        left: λ, float64.
        right: μ, float64.
        scales: s of each precision, float64.
        shifts: δ of each.
        like: Of the type of what is computed.
        budget: Bytes that variances may take at a time.
    """

    left: Float[Tensor, " v"]
    right: Float[Tensor, " w"]
    scales: Float[Tensor, " m"]
    shifts: Float[Tensor, " m"]
    like: Tensor
    budget: int = VARIANCES

    def variances(self, place: slice | Int[Tensor, " u"]) -> Float[Tensor, "m u w"]:
        """``1 / (s λ_v μ_w + δ)`` for some λ."""
        product = self.left[place][:, None] * self.right
        return (1.0 / (self.scales[:, None, None] * product + self.shifts[:, None, None])).to(self.like)

    @property
    def turned(self) -> ShiftedSpectra:
        """Those of ``A ⊗ G``."""
        return replace(self, left=self.right, right=self.left)

    def pieces(self) -> Iterator[tuple[slice, Float[Tensor, "m u w"]]]:
        """All λ with their variances, as many at a time as fit the budget; where all do, they are made once."""
        size = max(1, self.budget // (8 * len(self.shifts) * len(self.right)))
        if size >= len(self.left):
            yield slice(None), self._all_variances
            return
        for start in range(0, len(self.left), size):
            place = slice(start, start + size)
            yield place, self.variances(place)

    @cached_property
    def _all_variances(self) -> Float[Tensor, "m v w"]:
        return self.variances(slice(None))

    @cached_property
    def left_nodes(self) -> Nodes:
        """Nodes about λ."""
        return nodes(self.left, ZERO * self._weakest / max(float(self.right.max()), 1e-300))

    @cached_property
    def right_nodes(self) -> Nodes:
        """Nodes about μ."""
        return nodes(self.right, ZERO * self._weakest / max(float(self.left.max()), 1e-300))

    @cached_property
    def segments(self) -> Segments:
        """The weights by the products ``λ μ``, from which alone their variances follow."""
        return segments((self.left[:, None] * self.right).flatten(), ZERO * self._weakest)

    def contracted(self, rows: Float[Tensor, "n k v w"]) -> Float[Tensor, "m n k k"]:
        """``R (s G ⊗ A + δ)⁻¹ Rᵀ`` of each block of rows, for each precision.

        Args:
            rows: R.

        Cost:
            ``2 k² v w`` multiplications a block, whatever the number of precisions.
        """
        own = self.segments
        shifted = self.scales[:, None, None] * own.values + self.shifts[:, None, None]
        inverse = (1.0 / shifted).to(rows).flatten(1)
        k = rows.shape[1]
        found = [inverse @ own.grams(block.flatten(1)).view(-1, k * k) for block in rows]
        return torch.stack(found, 1).unflatten(2, (k, k))

    @property
    def _weakest(self) -> float:
        return float((self.shifts / self.scales).min())

    def cost(self, cotangents: int, positions: int) -> int:
        """Multiplications that ``covariances`` takes for an example."""
        side = cotangents * positions
        pairs = len(self.left_nodes.values) * len(self.right_nodes.values)
        moments = 2 * (side**2 * len(self.left) + positions**2 * len(self.right))
        return moments + pairs * side**2

    def cost_by_weights(self, cotangents: int, positions: int) -> int:
        """Multiplications of the same from the matrix of weights; at one position from their variances alone."""
        priors = len(self.shifts)
        pairs = cotangents * (cotangents + 1) // 2
        if positions == 1:
            return len(self.left) * priors * (len(self.right) + pairs)
        products = 2 * cotangents**2 if self.by_segments(cotangents) else pairs * (1 + priors)
        return len(self.left) * len(self.right) * (cotangents * positions + products)

    def by_segments(self, cotangents: int) -> bool:
        """Whether ``contracted`` takes less than the variances of the weights: of many, under many priors."""
        return len(self.left) * len(self.right) >= MANY and len(self.shifts) >= cotangents

    def covariances(
        self, g: Float[Tensor, "n k v t"], a: Float[Tensor, "n w t"], budget: int = GRAMS
    ) -> tuple[Float[Tensor, "m n k k"], Float[Tensor, "m n k"]]:
        """``J (s G ⊗ A + δ)⁻¹ Jᵀ`` of each example, for each precision.

        Args:
            g: Gradients in the eigenbasis of G.
            a: Inputs in that of A.
            budget: Bytes that products between positions may take at a time.

        Returns:
            The covariances, and the variances if no position had to do with another.
        """
        k = g.shape[1]
        t = g.shape[3]
        wide = torch.promote_types(g.dtype, torch.float32)
        left = self.left_nodes
        right = self.right_nodes
        products = left.values[:, None] * right.values
        inverse = 1.0 / (self.scales[:, None, None] * products + self.shifts[:, None, None])
        inverse = inverse.to(wide).to(g.device)
        itemsize = torch.finfo(wide).bits // 8
        together = max(1, budget // (itemsize * len(left.values) * (k * t) ** 2))
        found = list[Tensor]()
        separate = list[Tensor]()
        for start in range(0, len(g), together):
            part = g[start : start + together].to(wide)
            inputs = a[start : start + together].to(wide)
            gradients = left.grams(part.mT.flatten(1, 2))
            gradients = gradients.unflatten(3, (k, t)).unflatten(2, (k, t)).transpose(3, 4)  # [j, n, k, k, t, t]
            between = right.grams(inputs.mT)
            sums = gradients.transpose(0, 1).flatten(4).flatten(1, 3) @ between.transpose(0, 1).flatten(2).mT
            sums = sums.unflatten(1, (len(left.values), k * k))
            found.append(torch.einsum("njcq,mjq->mnc", sums, inverse).unflatten(2, (k, k)))
            own_gradients = gradients.diagonal(dim1=2, dim2=3).diagonal(dim1=2, dim2=3)  # [j, n, k, t]
            own_inputs = between.diagonal(dim1=2, dim2=3)  # [q, n, t]
            own = torch.einsum("jnkt,qnt->njqk", own_gradients, own_inputs)
            separate.append(torch.einsum("njqk,mjq->mnk", own, inverse))
        return torch.cat(found, 1).to(g), torch.cat(separate, 1).to(g)


def nodes(values: Float[Tensor, " v"], none: float, spacing: float = SPACING) -> Nodes:
    """Nodes about eigenvalues, evenly spaced logarithms from the least of those that count to the largest.

    The part of λ at the node a below it is linear in 1/λ. With b above, ``1 / (λ + δ)`` is then exact for very small
    and very large δ, between at most ``log²(b / a) / 16`` too small, relatively.

    Args:
        values: The eigenvalues.
        none: Those up to this one count as 0.
        spacing: Logarithms between two nodes, at most.

    Example:
        >>> found = nodes(torch.tensor([4.0, 1.0, 2.0]).double(), 0.0, math.log(4.0))
        >>> found.values.tolist(), found.order.tolist(), [round(part, 3) for part in found.lower.tolist()]
        ([1.0, 4.0], [1, 2, 0], [1.0, 0.333, 0.0])
    """
    ordered, order = values.sort()
    zeros = int((ordered <= none).sum())
    kept = ordered[zeros:]
    lower = torch.ones_like(ordered)
    zero = ordered.new_zeros(1 if zeros else 0)
    if not len(kept):
        return Nodes(zero, order, [0, zeros], lower)
    low = float(kept[0])
    high = float(kept[-1])
    steps = math.ceil(math.log(high / low) / spacing - 1e-9)
    grid = torch.linspace(math.log(low), math.log(high), 1 + steps, dtype=kept.dtype, device=kept.device).exp()
    grid[0] = low
    grid[-1] = high
    below = (torch.searchsorted(grid, kept, right=True) - 1).clamp(0, max(0, steps - 1))
    if steps:
        of_lower = 1.0 / grid[below]
        of_upper = 1.0 / grid[below + 1]
        lower[zeros:] = ((1.0 / kept - of_upper) / (of_lower - of_upper)).clamp(0.0, 1.0)
    firsts = torch.searchsorted(below, torch.arange(max(1, steps), device=below.device)) + zeros
    starts = ([0] if zeros else []) + firsts.tolist() + [len(ordered)]
    return Nodes(torch.cat([zero, grid]), order, starts, lower)


def segments(values: Float[Tensor, " d"], none: float, spacing: float = SPACING / 2, width: int = SEGMENT) -> Segments:
    """Eigenvalues in segments of nearly the same; the error is that of ``nodes`` with half of the spacing.

    Args:
        values: The eigenvalues.
        none: Those up to this one count as 0.
        spacing: Logarithms between the least and the largest of a segment, at most.
        width: Eigenvalues of a segment, at most.

    Example:
        >>> found = segments(torch.tensor([4.0, 1.0, 2.0]).double(), 0.0, math.log(4.1), 4)
        >>> found.values.tolist(), found.order[0, :3].tolist(), [round(part, 3) for part in found.parts[0, 0].tolist()]
        ([[1.0, 4.0]], [1, 2, 0], [1.0, 0.333, 0.0, 0.0])
    """
    ordered, order = values.sort()
    zeros = int((ordered <= none).sum())
    counted = ordered[zeros:]
    cell = torch.full_like(order, -1)
    if len(counted):
        cell[zeros:] = ((counted / counted[0]).log() / spacing).floor().long()
    _, sizes = cell.unique_consecutive(return_counts=True)
    ends = sizes.cumsum(0)
    pieces = (sizes + width - 1) // width
    of_cell = torch.arange(len(sizes), device=values.device).repeat_interleave(pieces)
    number = torch.arange(len(of_cell), device=values.device) - (pieces.cumsum(0) - pieces)[of_cell]
    starts = (ends - sizes)[of_cell] + width * number
    stops = torch.minimum(starts + width, ends[of_cell])
    places = starts[:, None] + torch.arange(width, device=values.device)
    there = places < stops[:, None]
    places = places.clamp(max=len(values) - 1)
    extremes = torch.stack([ordered[starts], ordered[stops - 1]], 1)
    extremes[cell[starts] < 0] = 0.0
    of_lower = 1.0 / extremes[:, :1]
    of_upper = 1.0 / extremes[:, 1:]
    lower = (1.0 / ordered[places] - of_upper) / (of_lower - of_upper)
    lower[extremes[:, 0] == extremes[:, 1]] = 1.0
    lower = lower.clamp(0.0, 1.0)
    parts = torch.stack([lower, 1.0 - lower], 1) * there[:, None]
    return Segments(order[places], parts, extremes)
