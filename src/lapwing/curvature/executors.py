"""The other two forms of a Gauss-Newton product: layer by layer, and by plain automatic differentiation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.columnwise import Columnwise
from lapwing.curvature.curved import curved, thin_root
from lapwing.curvature.ggn import by_position
from lapwing.curvature.layers import Pass, Survey
from lapwing.curvature.layerwise import Layerwise
from lapwing.curvature.network import Network
from lapwing.curvature.products import Executor, Prepared
from lapwing.curvature.sums import raw
from lapwing.data import Batch
from lapwing.likelihoods import Likelihood


@final
@dataclass(frozen=True, eq=False)
class Layered(Executor):
    """``Rᵀ (R v)`` with the rows R = Sᵀ J of a chunk, S Sᵀ = B, held layer by layer.

    Args:
        network: The network.
        survey: What is known of its layers.
        likelihood: The likelihood.
        examples: Examples to a chunk, at most.
    """

    network: Network
    survey: Survey
    likelihood: Likelihood
    examples: int
    form = "layers"

    def size(self, examples: int) -> int:
        """As many as fit the working memory."""
        return min(examples, self.examples)

    def prepare(self, batch: Batch) -> Prepared:
        """The rows: a forward pass, and a backward pass for each column of S."""
        self.network.check_unchanged()
        forward = Pass(self.network, self.survey, batch.inputs)
        f = self.likelihood.canonical(forward.outputs)
        y = self.likelihood.canonical_targets(f, batch.targets)
        columns = thin_root(self.likelihood, f, y).movedim(-1, 0)
        rows = [
            Layerwise.of(forward, raw(self.likelihood, cotangents)) for cotangents in by_position(columns, f.ndim - 2)
        ]

        def product(block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
            pieces = [part.pull(part.push(block)) for part in rows]
            return sum(pieces[1:], start=pieces[0])

        return Prepared(product, sum(part.bytes for part in rows))


@final
@dataclass(frozen=True, eq=False)
class Differentiated(Executor):
    """Push, output Hessian, pull, each column through the network again.

    Args:
        network: The network.
        likelihood: The likelihood.
    """

    network: Network
    likelihood: Likelihood
    form = "plain"

    def prepare(self, batch: Batch) -> Prepared:
        """Nothing can be prepared."""

        def product(block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
            part = Columnwise(self.network, self.likelihood, batch.inputs)
            f, pushed = part.outputs, part.push(block)
            y = self.likelihood.canonical_targets(f, batch.targets)
            bent = [curved(self.likelihood, f, y, column.view(f.shape)).flatten() for column in pushed.unbind(1)]
            return part.pull(torch.stack(bent, dim=1))

        return Prepared(product, None)
