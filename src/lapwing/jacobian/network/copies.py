"""A network at several values of its weights at once: outputs, and gradients of losses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, vmap

from lapwing.ground.data.inputs import Inputs, chunks, count
from lapwing.ground.data.sources import Batch
from lapwing.ground.errors import reason_of
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.spelled import without_advice
from lapwing.jacobian.products.plain import Reverse

logger = logging.getLogger(__name__)

BUDGET = 2**28
"""Bytes the activations of copies that go through a pass together may take (256 MiB)."""


@final
@dataclass(frozen=True, eq=False)
class Copies:
    """Copies of one network that differ in their uncertain weights; the module itself is never written to.

    Copies go through vectorised passes, as many copies and examples at a time as ``BUDGET`` has room for; those of a
    network that cannot be vectorised go one after the other (which is logged).

    Args:
        model: The network and its likelihood.

    Cost:
        A forward pass a copy, for gradients a backward pass more; ``BUDGET`` bytes.
    """

    model: Model

    def outputs(self, weights: Float[Tensor, "f d"], inputs: Inputs) -> Float[Tensor, "f n *event c"]:
        """Canonical outputs of each copy.

        Args:
            weights: Uncertain weights of each copy.
            inputs: The n examples all of them see.
        """
        parts = [
            self._over(partial(self._outputs, inputs=piece), (weights,), count(piece))
            for _, piece in self._pieces(inputs)
        ]
        return torch.cat(parts, dim=1)

    def gradients(
        self,
        weights: Float[Tensor, "f d"],
        batch: Batch,
        *,
        along: Float[Tensor, "f n *event c"] | None = None,
    ) -> Float[Tensor, "f d"]:
        """The gradient of ``Σ nll(f, y) − ⟨along, f⟩`` in the weights of each copy.

        Args:
            weights: Uncertain weights of each copy.
            batch: The examples, and their targets y.
            along: A linear term in the outputs of each copy.
        """
        likelihood = self.model.likelihood

        def loss(f: Tensor, place: slice, *terms: Tensor) -> Tensor:
            y = likelihood.canonical_targets(f, batch.targets[place])
            nll = likelihood.total_nll(f, y)
            return nll - sum((u * f).double().sum() for u in terms)

        return self._summed(loss, weights, batch.inputs, along)

    def pull(
        self, weights: Float[Tensor, "f d"], inputs: Inputs, along: Float[Tensor, "f n *event c"]
    ) -> Float[Tensor, "f d"]:
        """The gradient of ``⟨along, f⟩`` in the weights of each copy; otherwise as ``gradients``."""
        return self._summed(lambda f, _, u: (u * f).double().sum(), weights, inputs, along)

    def _summed(
        self, loss: Callable[..., Tensor], weights: Tensor, inputs: Inputs, along: Tensor | None
    ) -> Float[Tensor, "f d"]:
        """The gradient of a loss of the outputs, their place and ``along``, over all pieces."""
        total = torch.zeros_like(weights)
        for place, piece in self._pieces(inputs):

            def one(w: Tensor, *terms: Tensor, place: slice = place, piece: Inputs = piece) -> Tensor:
                return loss(self._outputs(w, piece), place, *terms)

            columns = (weights,) if along is None else (weights, along[:, place])
            total = total + self._over(grad(one), columns, count(piece), plain=partial(reverse_mode, one))
        return total

    def _outputs(self, weights: Float[Tensor, " d"], inputs: Inputs) -> Float[Tensor, "n *event c"]:
        return self.model.likelihood.canonical(self.model.network(inputs, self.model.network.with_weights(weights)))

    @property
    def _bytes(self) -> int:
        """What the activations of one example take in one copy."""
        return max(1, sum(self.model.survey.floats) * self.model.network.like.element_size())

    def _pieces(self, inputs: Inputs) -> Iterator[tuple[slice, Inputs]]:
        """Examples in pieces, each of which one copy has room for."""
        return chunks(inputs, max(1, BUDGET // self._bytes))

    def _over(
        self,
        function: Callable[..., Tensor],
        columns: tuple[Tensor, ...],
        examples: int,
        *,
        plain: Callable[..., Tensor] | None = None,
    ) -> Tensor:
        """A function of one copy and some examples, for all copies; the same by ``plain`` where it is refused."""
        size = max(1, min(len(columns[0]), BUDGET // (examples * self._bytes)))
        with torch.inference_mode(False), torch.no_grad(), without_advice():
            try:
                return vmap(function, chunk_size=size)(*columns)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, ValueError) as reason:
                logger.info("cannot vectorise over copies (%s): going through them one by one", reason_of(reason))
            return torch.stack([(plain or function)(*column) for column in zip(*columns, strict=True)])


def reverse_mode(function: Callable[..., Tensor], weights: Tensor, *others: Tensor) -> Tensor:
    """The gradient in the first argument by plain reverse mode."""
    there = Reverse(lambda tracked: function(tracked, *others), weights)
    return there.pull(torch.ones_like(there.values))
