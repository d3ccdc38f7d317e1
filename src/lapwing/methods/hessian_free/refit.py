"""The objective that is fitted again, at many values of the weights and with many rewards at once."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs, chunks
from lapwing.ground.data.sources import Batch
from lapwing.ground.errors import NumericalError
from lapwing.ground.layout import summed
from lapwing.ground.precision import wide
from lapwing.ground.progress import Bar
from lapwing.ground.shared import fields_of
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.copies import Copies
from lapwing.jacobian.products.hessian import hessian_product
from lapwing.linalg import FunctionOperator, Operator
from lapwing.methods.hessian_free.regularisers import PIECE, Regulariser

TINY = 128
"""Weights up to which the Hessian is written out once: it has fewer columns than the solves with it take products."""


@final
class Tally:
    """Counts what refits take, with a progress bar of the passes over the data while one is shown.

    A gradient is a pass of one fit, a product one of a column.

    Example:
        >>> work = Tally()
        >>> with work.shown(progress=False):
        ...     work.add(gradients=3)
        >>> work.gradients
        3
    """

    def __init__(self) -> None:
        self.fits = self.gradients = self.products = 0
        self._bar: Bar | None = None

    @contextmanager
    def shown(self, progress: bool | None) -> Generator[None]:
        """Show a bar meanwhile; how many passes there will be is not known."""
        with Bar("refits", unit="passes over the data", progress=progress) as self._bar:
            try:
                yield
            finally:
                self._bar = None

    def add(self, *, fits: int = 0, gradients: int = 0, products: int = 0) -> None:
        """Some more."""
        self.fits += fits
        self.gradients += gradients
        self.products += products
        if self._bar is not None:
            self._bar.update(gradients + products)


@final
@dataclass(frozen=True, eq=False)
class Refit:
    """``L_f(θ) = Σ_i -log p(y_i | θ) + ½ θᵀ A θ − r_f(θ)``, to be minimised from the trained weights θ̂.

    In terms of the change ``δ = θ - θ̂``, in float64. Where ``centred``, the gradient of the first two terms at θ̂ is
    taken away from it everywhere, mini-batch by mini-batch: θ̂ is then their stationary point whether or not training
    had come to its end, and the response to λ is that of the Hessian there.

    Args:
        model: The network, its likelihood and, unless it was loaded without them, the training data.
        prior: A.
        centred: Whether the gradient at the trained weights is taken out.
        work: Counts what was done.
    """

    model: Model
    prior: Float[Tensor, " d"]
    centred: bool
    work: Tally = field(default_factory=Tally)

    def __getstate__(self) -> dict[str, Any]:
        """What pickle and ``copy`` take: the fields; what was computed from them since is computed again."""
        return fields_of(self)

    @property
    def network(self) -> Network:
        """The network at its trained weights."""
        return self.model.network

    @cached_property
    def copies(self) -> Copies:
        """The network at many values of its weights."""
        return Copies(self.model)

    def trained_outputs(self, inputs: Inputs) -> Float[Tensor, "n *event c"]:
        """Canonical outputs at the trained weights, float64."""
        return wide(torch.cat([self.model.outputs(part) for _, part in chunks(inputs, PIECE)]))

    @cached_property
    def trained(self) -> Float[Tensor, " d"]:
        """θ̂, float64."""
        return wide(self.network.weights)

    @cached_property
    def precision(self) -> Operator:
        """``P``, the exact Hessian of the loss and the prior at the trained weights: a matrix where that is small."""
        hessian = hessian_product(self.model)
        prior = self.prior.to(self.network.like)[:, None]

        def product(block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
            self.work.add(products=block.shape[1])
            return hessian @ block + prior * block

        if self.network.size <= TINY:
            matrix = product(torch.eye(self.network.size).to(self.network.like))
            return FunctionOperator(matrix.matmul, matrix.mT.matmul, hessian.shape, self.network.like)
        return FunctionOperator(product, product, hessian.shape, self.network.like)

    @cached_property
    def gradient(self) -> Float[Tensor, " d"]:
        """``g``, the gradient of the loss and the prior at the trained weights, float64."""
        slopes = (self._own_slope(batch) for batch in self.model.data)
        return self.model.data.added(summed(slopes, self.trained)) + self.prior * self.trained

    def weights(self, changes: Float[Tensor, "f d"]) -> Float[Tensor, "f d"]:
        """θ̂ + δ in the network's dtype."""
        return (self.trained + changes).to(self.network.like)

    def slopes(
        self, fits: Regulariser, changes: Float[Tensor, "f d"], batch: Batch | None = None
    ) -> Float[Tensor, "f d"]:
        """Gradient of each fit's objective.

        Args:
            fits: ``λ r`` of each.
            changes: δ of each.
            batch: A mini-batch that stands for all the data; ``None`` takes them all.

        Cost:
            A forward and a backward pass over the data and over the evaluation points for each fit; where centred, one
            more over the data, as a small change keeps its digits where it is taken before it is summed.
        """
        theta = self.trained + changes
        weights = self.weights(changes)
        data = self.model.data
        share = 1.0
        if batch is not None:
            share = data.span[1] / float(data.added(torch.tensor(float(len(batch)))))
        gradient = torch.zeros_like(theta)
        for each in data if batch is None else (batch,):
            along = fits.slope_on(self.copies, each)
            slope = wide(self.copies.gradients(weights, each, along=along))
            gradient += share * (slope - self._own_slope(each) if self.centred else slope)
        self.work.add(gradients=len(fits) if batch is None else 0)
        prior = self.prior * (changes if self.centred else theta)
        return data.added(gradient) + prior - fits.pull(self.copies, weights)

    def reward(self, fits: Regulariser) -> Float[Tensor, "f d"]:
        """``∇r`` of each fit at the trained weights, float64."""
        return fits.gradient(self.copies)

    def outputs(self, changes: Float[Tensor, "f d"], inputs: Inputs) -> Float[Tensor, "f n *event c"]:
        """Canonical outputs of each fit, float64."""
        weights = self.weights(changes)
        with torch.no_grad():
            parts = [wide(self.copies.outputs(weights, part)) for _, part in chunks(inputs, PIECE)]
        found = torch.cat(parts, dim=1)
        if not bool(torch.isfinite(found).all()):
            raise NumericalError(
                "finite outputs of the refitted networks",
                f"{int((~torch.isfinite(found)).sum())} NaN or infinite of {found.numel()}",
                "a smaller step= or scale=, a smaller learning rate, or training to convergence first",
            )
        return found

    def _own_slope(self, batch: Batch) -> Float[Tensor, " d"]:
        """The gradient of a batch's losses at the trained weights."""
        return wide(self.copies.gradients(self.network.weights[None], batch)[0])
