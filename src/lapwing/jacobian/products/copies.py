"""A network at several values of its weights at once: outputs, and gradients of losses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, vmap

from lapwing.ground.data.inputs import Inputs, chunks, count
from lapwing.ground.data.sources import Batch
from lapwing.ground.errors import reason_of
from lapwing.ground.precision import wide
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.decompositions import without_advice
from lapwing.jacobian.products.autodiff_jacobian import Reverse

logger = logging.getLogger(__name__)

BUDGET = 2**28
"""Bytes the activations of copies that go through a pass together may take (256 MiB)."""

Loss: TypeAlias = Callable[..., Tensor]
"""Of the outputs of one copy, the place of their examples, and what is given of each of them."""


@final
@dataclass(frozen=True, eq=False)
class Copies:
    """Copies of one network that differ in their uncertain weights; the module itself is never written to.

    They go through vectorised passes, as many copies and examples at a time as the budget has room for; those of a
    network that cannot be vectorised go one after the other (which is logged).

    Args:
        model: The network and its likelihood.
        budget: Bytes the activations of copies that go through a pass together may take.

    Cost:
        A forward pass a copy, for gradients a backward pass more; ``budget`` bytes.
    """

    model: Model
    budget: int = BUDGET

    def outputs(self, weights: Float[Tensor, "f d"], inputs: Inputs) -> Float[Tensor, "f n *event c"]:
        """Canonical outputs of each copy.

        Args:
            weights: Uncertain weights of each copy.
            inputs: The n examples all of them see.
        """
        parts: list[Tensor] = []
        for _, piece in self._pieces(inputs):
            outputs = partial(self._outputs, piece)
            parts.append(self._over_copies(outputs, outputs, (weights,), count(piece)))
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
            return nll - sum(wide(u * f).sum() for u in terms)

        return self._summed_gradients(loss, weights, batch.inputs, along)

    def pull(
        self, weights: Float[Tensor, "f d"], inputs: Inputs, along: Float[Tensor, "f n *event c"]
    ) -> Float[Tensor, "f d"]:
        """The gradient of ``⟨along, f⟩`` in the weights of each copy; otherwise as ``gradients``."""

        def inner(f: Tensor, place: slice, u: Tensor) -> Tensor:
            return wide(u * f).sum()

        return self._summed_gradients(inner, weights, inputs, along)

    def _summed_gradients(
        self, loss: Loss, weights: Float[Tensor, "f d"], inputs: Inputs, along: Float[Tensor, "f n *event c"] | None
    ) -> Float[Tensor, "f d"]:
        """The gradient in the weights of each copy, the losses of all pieces of the examples added up."""
        total = torch.zeros_like(weights)
        for place, piece in self._pieces(inputs):
            loss_at = partial(self._loss_at, loss, place, piece)
            columns = (weights,) if along is None else (weights, along[:, place])
            total = total + self._over_copies(grad(loss_at), partial(reverse_mode, loss_at), columns, count(piece))
        return total

    def _loss_at(self, loss: Loss, place: slice, inputs: Inputs, weights: Tensor, *terms: Tensor) -> Tensor:
        """The loss of one copy on the examples of one place."""
        return loss(self._outputs(inputs, weights), place, *terms)

    def _outputs(self, inputs: Inputs, weights: Float[Tensor, " d"]) -> Float[Tensor, "n *event c"]:
        """Canonical outputs of one copy."""
        network = self.model.network
        return self.model.likelihood.canonical(network(inputs, network.with_weights(weights)))

    @property
    def _bytes(self) -> int:
        """What the activations of one example take in one copy."""
        return max(1, sum(self.model.survey.floats) * self.model.network.like.element_size())

    def _pieces(self, inputs: Inputs) -> Iterator[tuple[slice, Inputs]]:
        """Examples in pieces, each of which one copy has room for."""
        return chunks(inputs, max(1, self.budget // self._bytes))

    def _over_copies(
        self, function: Callable[..., Tensor], plain: Callable[..., Tensor], columns: tuple[Tensor, ...], examples: int
    ) -> Tensor:
        """A function of one copy and some examples, for all copies, vectorised; ``plain`` one by one if refused."""
        size = max(1, min(len(columns[0]), self.budget // (examples * self._bytes)))
        with torch.inference_mode(False), torch.no_grad(), without_advice():
            try:
                return vmap(function, chunk_size=size)(*columns)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, ValueError) as reason:
                logger.info("cannot vectorise over copies (%s): going through them one by one", reason_of(reason))
            return torch.stack([plain(*column) for column in zip(*columns, strict=True)])


def reverse_mode(function: Callable[..., Tensor], weights: Tensor, *others: Tensor) -> Tensor:
    """The gradient in the first argument by plain reverse mode."""
    there = Reverse(lambda tracked: function(tracked, *others), weights)
    return there.pull(torch.ones_like(there.values))
