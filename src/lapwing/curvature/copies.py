"""A network at several values of its weights at once: outputs, losses and their gradients."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad_and_value, vmap

from lapwing.curvature.layers import Survey
from lapwing.curvature.network import Network
from lapwing.data import Batch, count
from lapwing.likelihoods import Likelihood
from lapwing.types import Inputs

logger = logging.getLogger(__name__)

BUDGET = 2**28
"""Bytes the activations of all copies may take together (256 MiB)."""


@final
@dataclass(frozen=True, eq=False)
class Copies:
    """Copies of one network that differ in their uncertain weights; the module itself is never written to.

    All copies go through one vectorised pass; those of a network that cannot be vectorised go one after the other
    (which is logged).

    Args:
        network: The network.
        survey: What is known of its layers.
        likelihood: The likelihood.

    Cost:
        A forward pass a copy, for gradients a backward pass more; ``BUDGET`` bytes.
    """

    network: Network
    survey: Survey
    likelihood: Likelihood

    def outputs(self, weights: Float[Tensor, "f d"], inputs: Inputs) -> Float[Tensor, "f n *event c"]:
        """Canonical outputs of each copy.

        Args:
            weights: Uncertain weights of each copy.
            inputs: The n examples all of them see.
        """

        def one(w: Tensor) -> Tensor:
            return self._outputs(w, inputs)

        return self._over(one, (weights,), count(inputs))

    def losses(
        self,
        weights: Float[Tensor, "f d"],
        batch: Batch,
        *,
        moved: Float[Tensor, "f c"] | None = None,
        along: Float[Tensor, "f n *event c"] | None = None,
    ) -> tuple[Float[Tensor, "f d"], Float[Tensor, " f"]]:
        """The gradient in the weights and the value of ``Σ nll(f, y + moved) − ⟨along, f⟩`` for each copy.

        Args:
            weights: Uncertain weights of each copy.
            batch: The examples, and their targets y.
            moved: What is added to the targets of each copy.
            along: A linear term in the outputs of each copy.

        Returns:
            Gradients in the dtype of the network, values in float64.
        """

        def one(w: Tensor, *terms: Tensor) -> Tensor:
            parts = iter(terms)
            f = self._outputs(w, batch.inputs)
            y = self.likelihood.canonical_targets(f, batch.targets)
            y = y if moved is None else y + next(parts)
            loss = self.likelihood.nll(f, y).double().sum()
            return loss if along is None else loss - (next(parts) * f).double().sum()

        terms = tuple(term for term in (moved, along) if term is not None)
        return self._over(grad_and_value(one), (weights, *terms), len(batch))

    def pull(
        self, weights: Float[Tensor, "f d"], inputs: Inputs, along: Float[Tensor, "f n *event c"]
    ) -> tuple[Float[Tensor, "f d"], Float[Tensor, " f"]]:
        """The gradient in the weights and the value of ``⟨along, f⟩`` for each copy; otherwise as ``losses``."""

        def one(w: Tensor, u: Tensor) -> Tensor:
            return (u * self._outputs(w, inputs)).double().sum()

        return self._over(grad_and_value(one), (weights, along), count(inputs))

    def _outputs(self, weights: Float[Tensor, " d"], inputs: Inputs) -> Float[Tensor, "n *event c"]:
        return self.likelihood.canonical(self.network(inputs, self.network.with_weights(weights)))

    def _over(self, function: Callable[..., Any], columns: tuple[Tensor, ...], examples: int) -> Any:
        """A function of one copy, for all of them."""
        each, beside = self.survey.floats
        bytes_of_one = max(1, examples * (each + beside) * self.network.like.element_size())
        size = max(1, min(len(columns[0]), BUDGET // bytes_of_one))
        with torch.inference_mode(False), torch.no_grad():
            try:
                return vmap(function, chunk_size=size)(*columns)
            except (RuntimeError, NotImplementedError, ValueError) as reason:
                logger.info("cannot vectorise over copies (%s): going through them one by one", reason)
            found = [function(*column) for column in zip(*columns, strict=True)]
            if isinstance(found[0], Tensor):
                return torch.stack(found)
            return tuple(torch.stack(parts) for parts in zip(*found, strict=True))
