"""The objective that is fitted again, at many values of the weights and of λ at once."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from lapwing.ground.data import Batch, chunks, tensors
from lapwing.ground.errors import NumericalError
from lapwing.ground.types import Inputs
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.copies import Copies
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.hessian import HessianProduct
from lapwing.linalg import FunctionOperator, Operator
from lapwing.methods.hessian_free.regularisers import PIECE, Regulariser

HELD = 2**28
"""Bytes of training data that are kept in memory rather than read again."""

SMALL = 4096
"""Weights up to which products with the Hessian are vectorised rather than recorded, which takes time of its own."""


@final
class Passes:
    """Counts passes over the data, each fit's and each column's by itself, on a progress bar while one is shown.

    Example:
        >>> passes = Passes()
        >>> with passes.shown(progress=False):
        ...     passes.add(3)
        >>> passes.total
        3
    """

    def __init__(self) -> None:
        self.total = 0
        self._bar: tqdm | None = None

    @contextmanager
    def shown(self, progress: bool) -> Generator[None]:
        """Show a bar meanwhile; how many passes there will be is not known."""
        with tqdm(desc="refits", disable=not progress, unit="pass", leave=False) as self._bar:
            try:
                yield
            finally:
                self._bar = None

    def add(self, number: int) -> None:
        """Some more passes."""
        self.total += number
        if self._bar is not None:
            self._bar.update(number)


@final
@dataclass(frozen=True, eq=False)
class Fits:
    """Which fits: a member of the regulariser and a signed λ each.

    Args:
        regulariser: The functionals r.
        members: The functional of each fit.
        scales: λ of each fit, float64, negative for the other half of an antithetic pair.
    """

    regulariser: Regulariser
    members: Int[Tensor, " f"]
    scales: Float[Tensor, " f"]

    def __len__(self) -> int:
        return len(self.members)

    def take(self, which: Tensor) -> Fits:
        """Some of the fits."""
        return Fits(self.regulariser, self.members[which], self.scales[which])


@final
@dataclass(frozen=True, eq=False)
class Refit:
    """``L_f(θ) = Σ_i -log p(y_i | θ) + ½ θᵀ A θ − λ_f r_f(θ)``, to be minimised from the trained weights θ̂.

    In terms of the change ``δ = θ - θ̂``, in float64. Where ``centred``, the gradient of the first two terms at θ̂ is
    taken away from it everywhere, mini-batch by mini-batch: θ̂ is then their stationary point whether or not training
    had come to its end, and the response to λ is that of the Hessian there.

    Args:
        model: The network, its likelihood and, unless it was loaded without them, the training data.
        prior: A.
        centred: Whether the gradient at the trained weights is taken out.
        passes: Counts passes over the data.
    """

    model: Model
    prior: Float[Tensor, " d"]
    centred: bool
    passes: Passes = field(default_factory=Passes)

    def __getstate__(self) -> dict[str, Any]:
        """What pickle and ``copy`` take: the fields; what was computed from them since is computed again."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

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
        with torch.no_grad():
            parts = [self.model.likelihood.canonical(self.network(part)) for _, part in chunks(inputs, PIECE)]
        return torch.cat(parts).double()

    @cached_property
    def trained(self) -> Float[Tensor, " d"]:
        """θ̂, float64."""
        return self.network.weights.double()

    @cached_property
    def precision(self) -> Operator:
        """``P``, the exact Hessian of the loss and the prior at the trained weights, by products."""
        form = "plain" if self.network.size <= SMALL else None
        hessian = HessianProduct(self.model, form=form)
        prior = self.prior.to(self.network.like)[:, None]

        def product(block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
            self.passes.add(block.shape[1])
            return hessian @ block + prior * block

        return FunctionOperator(product, product, hessian.shape, self.network.like)

    @cached_property
    def batches(self) -> Iterable[Batch]:
        """The training data, kept in memory where they are small."""
        kept, room = list[Batch](), HELD
        for batch in self.model.data:
            room -= sum(value.numel() * value.element_size() for value in [*tensors(batch.inputs), batch.targets])
            if room < 0:
                return self.model.data
            kept.append(batch)
        return kept

    @cached_property
    def examples(self) -> int:
        """Training examples n."""
        return sum(len(batch) for batch in self.batches)

    @cached_property
    def gradient(self) -> Float[Tensor, " d"]:
        """``g``, the gradient of the loss and the prior at the trained weights, float64."""
        weights = self.network.weights[None]
        found = self.prior * self.trained
        for batch in self.batches:
            found = found + self.copies.losses(weights, batch)[0][0].double()
        return found

    def weights(self, changes: Float[Tensor, "f d"]) -> Float[Tensor, "f d"]:
        """θ̂ + δ in the network's dtype."""
        return (self.trained + changes).to(self.network.like)

    def slopes(self, fits: Fits, changes: Float[Tensor, "f d"]) -> tuple[Float[Tensor, "f d"], Float[Tensor, " f"]]:
        """Gradient and value of each fit's objective, over all the data.

        Args:
            fits: Which fits.
            changes: δ of each.

        Cost:
            A forward and a backward pass over the data and over the evaluation points for each fit.
        """
        weights = self.weights(changes)
        self.passes.add(len(fits))
        gradient, value = self._constant(fits, changes, weights)
        for batch in self.batches:
            part = self._batch(fits, weights, batch)
            gradient += part[0]
            value += part[1]
        if self.centred:
            gradient -= self.gradient
            value -= changes @ self.gradient
        return gradient, value

    def sampled_slopes(self, fits: Fits, changes: Float[Tensor, "f d"], batch: Batch) -> Float[Tensor, "f d"]:
        """The gradient of each fit's objective estimated from one mini-batch, which stands for all the data."""
        weights = self.weights(changes)
        gradient = self._constant(fits, changes, weights)[0]
        share = self.examples / len(batch)
        gradient += share * self._batch(fits, weights, batch)[0]
        if self.centred:
            trained = self.network.weights[None]
            gradient -= self.prior * self.trained + share * self.copies.losses(trained, batch)[0][0].double()
        return gradient

    def reward(self, fits: Fits) -> Float[Tensor, "f d"]:
        """``v = ∇r`` of each fit at the trained weights, float64."""
        weights = self.network.weights.expand(len(fits), -1)
        pulled = fits.regulariser.pull(self.copies, weights, fits.members)
        total = torch.zeros(weights.shape, dtype=torch.float64, device=weights.device) if pulled is None else pulled[0]
        for batch in self.batches if fits.regulariser.in_sample else ():
            slope = fits.regulariser.slope(fits.members, self._trained_outputs(batch))
            total = total + self.copies.pull(weights, batch.inputs, slope)[0]
        return total

    def outputs(self, changes: Float[Tensor, "f d"], inputs: Inputs) -> Float[Tensor, "f n *event c"]:
        """Canonical outputs of each fit, float64."""
        weights = self.weights(changes)
        with torch.no_grad():
            parts = [self.copies.outputs(weights, part).double() for _, part in chunks(inputs, PIECE)]
        found = torch.cat(parts, dim=1)
        if not bool(torch.isfinite(found).all()):
            raise NumericalError(
                "finite outputs of the refitted networks",
                f"{int((~torch.isfinite(found)).sum())} NaN or infinite of {found.numel()}",
                "a smaller step= or scale=, a smaller learning rate, or training to convergence first",
            )
        return found

    def _constant(
        self, fits: Fits, changes: Tensor, weights: Float[Tensor, "f d"]
    ) -> tuple[Float[Tensor, "f d"], Float[Tensor, " f"]]:
        """What does not depend on the training data: the prior, and rewards elsewhere."""
        theta = self.trained + changes
        gradient, value = self.prior * theta, 0.5 * (self.prior * theta * theta).sum(1)
        pulled = fits.regulariser.pull(self.copies, weights, fits.members)
        if pulled is not None:
            gradient -= fits.scales[:, None] * pulled[0]
            value -= fits.scales * pulled[1]
        return gradient, value

    def _batch(
        self, fits: Fits, weights: Float[Tensor, "f d"], batch: Batch
    ) -> tuple[Float[Tensor, "f d"], Float[Tensor, " f"]]:
        """The part of some training examples, float64."""
        regulariser = fits.regulariser
        moved, along = regulariser.moved(fits.members, fits.scales, self.network.like), None
        if regulariser.in_sample and moved is None:
            slope = regulariser.slope(fits.members, self._trained_outputs(batch))
            along = slope * fits.scales.to(slope).view(-1, *(1,) * (slope.ndim - 1))
        gradient, value = self.copies.losses(weights, batch, moved=moved, along=along)
        return gradient.double(), value.double()

    def _trained_outputs(self, batch: Batch) -> Float[Tensor, "n *event c"]:
        return self.copies.outputs(self.network.weights[None], batch.inputs)[0]
