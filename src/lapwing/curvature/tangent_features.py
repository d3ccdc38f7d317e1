"""Tangent features φ = J W: what a few changes W of the weights do to the outputs, and J V Jᵀ beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, chunks, take
from lapwing.ground.precision import WIDE, Precision, at_least_single, wide
from lapwing.jacobian.forward_pass import Pass
from lapwing.jacobian.layers.base import Factor, jacobian_rows
from lapwing.jacobian.model import Model
from lapwing.jacobian.products.autodiff_jacobian import Columnwise
from lapwing.likelihoods.base import COLUMNS, identity_cotangents

ROWS_FOR_DIGITS = 4
"""Rows to a column up to which rows are made where they are contracted in more digits than the network has."""


@final
@dataclass(frozen=True, eq=False)
class OutputFeatures:
    """What is known of some examples.

    Args:
        mean: Canonical outputs f.
        values: ``φ = J W``, float64.
        covariances: ``J V Jᵀ`` at each position, one for each variance V asked for, float64.
    """

    mean: Float[Tensor, "n *event c"]
    values: Float[Tensor, "n *event c k"]
    covariances: tuple[Float[Tensor, "n *event c c"], ...] = ()


@final
@dataclass(frozen=True, eq=False)
class TangentFeatures:
    """Features of any examples under the same changes of the weights.

    Two ways, one rule. *Rows* makes the Jacobian of a chunk layer by layer and contracts it with W as it goes: c
    backward passes, whatever the columns. *Columns* pushes all of W through the network in one batched forward-mode
    pass: about two forward passes a column. Rows is taken where a covariance is asked for, which needs them anyway, and
    where there are no more outputs than columns.

    Rows are contracted in float64, whatever the network is in: where the data outweigh the prior, what is left of
    J V Jᵀ beside φ φᵀ, and of S in most directions beside its largest eigenvalue, is less than the rounding of sums
    in float32. So rows are taken up to ``ROWS_FOR_DIGITS`` times as many outputs. With products in float32 asked for
    only rows of half precision are widened, as J V Jᵀ may not fit their range.

    Args:
        model: The network and its likelihood.
        changes: W.
        variances: V, diagonals over the uncertain weights.
    """

    model: Model
    changes: Float[Tensor, "d k"]
    variances: tuple[Float[Tensor, " d"], ...] = ()

    @property
    def by_rows(self) -> bool:
        """Whether the Jacobian of a chunk is made."""
        most = self.changes.shape[1] * (ROWS_FOR_DIGITS if self._widened else 1)
        return bool(self.variances) or self.model.width <= most

    @property
    def epsilon(self) -> float:
        """Relative rounding of the features as products."""
        like = self.model.network.like
        return torch.finfo(WIDE if self.by_rows and self._widened else like.dtype).eps

    @property
    def chunk(self) -> int:
        """Examples at once, so that they fit ``Limits.training``."""
        width = self.model.width if self.by_rows else min(self.changes.shape[1], COLUMNS)
        itemsize = 8 if self._widened else self.model.network.like.itemsize
        return self.model.survey.chunk(width, itemsize, self.model.limits.training)

    def of(self, inputs: Inputs) -> OutputFeatures:
        """The features of n examples.

        Cost:
            By rows a forward and c backward passes, by columns about two forward passes for each; memory
            ``Limits.training`` beyond the result.
        """
        with torch.no_grad():
            return joined_features([self.of_pass(self.model.forward(part)) for _, part in chunks(inputs, self.chunk)])

    def of_pass(self, forward: Pass) -> OutputFeatures:
        """The features of one chunk, whose forward pass is at hand."""
        if not self.by_rows:
            moved = Columnwise(self.model, forward.inputs).push(self.changes.to(self.model.network.like))
            return OutputFeatures(forward.outputs, wide(moved).movedim(0, -1))
        f = forward.outputs
        blocks = [self._contracted(forward.factors(cotangents)) for cotangents in identity_cotangents(f)]
        values, *covariances = (torch.stack(found, dim=1).view(*f.shape, -1) for found in zip(*blocks, strict=True))
        return OutputFeatures(f, values, tuple(covariances))

    @property
    def _widened(self) -> bool:
        """Whether rows of fewer digits are contracted in float64."""
        like = self.model.network.like
        half = like.element_size() < 4
        return half or (self.model.precision.products == WIDE and like.dtype != WIDE)

    @cached_property
    def _spread(self) -> Float[Tensor, "all _"]:
        """W and then every V, among all weights of their parameters."""
        changes = wide(self.changes) if self._widened else self.changes
        blocks = [changes, *(variance.to(changes)[:, None] for variance in self.variances)]
        return self.model.network.spread(torch.cat(blocks, dim=1))

    def _contracted(self, factors: Iterator[Factor]) -> list[Float[Tensor, "n c _"]]:
        """``J W`` and every ``J V Jᵀ`` of one position, layer by layer."""
        k = self.changes.shape[1]
        total: list[Tensor] = []
        for factor in factors:
            factor = (factor.widened() if self._widened else factor).explicit()
            own = self.model.network.part(factor.names, self._spread)
            parts = [wide(factor.for_products().push(own[:, :k]))]
            parts += [wide(factor.covariance(variance)) for variance in own[:, k:].unbind(1)]
            total = [a + b for a, b in zip(total, parts, strict=True)] if total else parts
        return total


def joined_features(parts: list[OutputFeatures]) -> OutputFeatures:
    """The features of chunks one after the other."""
    covariances = zip(*(part.covariances for part in parts), strict=True)
    return OutputFeatures(
        torch.cat([part.mean for part in parts]),
        torch.cat([part.values for part in parts]),
        tuple(torch.cat(column) for column in covariances),
    )


@final
@dataclass(frozen=True, eq=False)
class Pairs:
    """Some (example, output) pairs.

    Args:
        inputs: One example a pair.
        examples: Its number in the pass over the data that chose it.
        outputs: Its output, counted over all event positions.
    """

    inputs: Inputs
    examples: Int[Tensor, " m"]
    outputs: Int[Tensor, " m"]

    def __len__(self) -> int:
        return len(self.outputs)

    def at(self, index: slice | Tensor) -> Pairs:
        """Some of them."""
        return Pairs(take(self.inputs, index), self.examples[index], self.outputs[index])


def pair_rows(model: Model, pairs: Pairs) -> Float[Tensor, "m d"]:
    """``∇_θ f_i(x)`` for each pair (x, i), in float32 of a network in half precision.

    Rows of other pairs lie in the span of these to rounding: that of half precision would be a variance of its own.

    Args:
        model: The network and its likelihood.
        pairs: The pairs.

    Cost:
        One forward and one backward pass of each example.
    """
    network = model.network
    kept = at_least_single(network.like)
    products = Precision(kept.dtype)
    size = model.survey.chunk(1, kept.itemsize, model.limits.training, network.layout.size)
    rows = kept.new_empty(len(pairs), network.size)
    for place, part in chunks(pairs.inputs, size):
        forward = model.forward(part)
        f = forward.outputs
        chosen = pairs.outputs[place].to(f.device)[:, None]
        cotangent = torch.zeros_like(f).flatten(1).scatter_(1, chosen, 1.0).view_as(f)
        factors = forward.factors(cotangent[None])
        if kept.dtype != network.like.dtype:
            factors = (factor.in_precision(products) for factor in factors)
        rows[place] = jacobian_rows(network, factors)[:, 0]
    return rows
