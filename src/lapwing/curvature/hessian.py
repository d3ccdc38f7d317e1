"""The curvature as matrix-free operators: the generalised Gauss-Newton matrix, and the exact Hessian of the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from lapwing.curvature.ggn import COLUMNS
from lapwing.curvature.jacobian import BatchJacobian
from lapwing.curvature.layers import Survey
from lapwing.curvature.network import Network
from lapwing.data import Batch, Data
from lapwing.errors import UnsupportedError
from lapwing.likelihoods import Likelihood
from lapwing.linalg import Operator


@final
@dataclass(frozen=True, eq=False)
class GGNProduct(Operator):
    """``sum_n J_nᵀ B_n J_n`` touched through products alone: push, output Hessian, pull.

    Args:
        network: The network.
        survey: What is known of its layers.
        likelihood: The likelihood.
        data: The data; read once a product.

    Cost:
        That of a product with J and one with Jᵀ, batch by batch.
    """

    network: Network
    survey: Survey
    likelihood: Likelihood
    data: Data

    @property
    def shape(self) -> tuple[int, int]:
        """The uncertain weights d, twice."""
        return (self.network.size, self.network.size)

    @property
    def T(self) -> GGNProduct:
        """The operator itself: it is symmetric."""
        return self

    @property
    def _like(self) -> Tensor:
        return self.network.like

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        total = torch.zeros_like(block)
        for batch in self.data:
            part = BatchJacobian(self.network, self.survey, self.likelihood, batch.inputs)
            f, y = canonical(self.likelihood, self.network(batch.inputs), batch)
            hessian = self.likelihood.hessian(f, y).flatten(0, -3)
            pushed = part.push(block)
            curved = hessian @ pushed.view(len(hessian), -1, block.shape[1])
            total += part.pull(curved.reshape(pushed.shape))
        return total


@final
@dataclass(frozen=True, eq=False)
class HessianProduct(Operator):
    """The exact Hessian of the negative log likelihood, touched through products alone (Pearlmutter 1994).

    It is symmetric, and indefinite away from a minimum: not a precision by itself.

    Args:
        network: The network.
        likelihood: The likelihood.
        data: The data; read once a product.

    Raises:
        UnsupportedError: If an operation of the network has no forward-mode derivative.

    Cost:
        A forward-over-reverse pass a column: about two gradients.
    """

    network: Network
    likelihood: Likelihood
    data: Data

    @property
    def shape(self) -> tuple[int, int]:
        """The uncertain weights d, twice."""
        return (self.network.size, self.network.size)

    @property
    def T(self) -> HessianProduct:
        """The operator itself: it is symmetric."""
        return self

    @property
    def _like(self) -> Tensor:
        return self.network.like

    def _matmat(self, block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        total = torch.zeros_like(block)
        for batch in self.data:

            def loss(weights: Tensor, batch: Batch = batch) -> Tensor:
                outputs = self.network(batch.inputs, self.network.with_weights(weights))
                f, y = canonical(self.likelihood, outputs, batch)
                return self.likelihood.nll(f, y).sum()

            with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
                total += self._product(grad(loss), block)
        return total

    def _product(self, gradient: Callable[[Tensor], Tensor], block: Float[Tensor, "d k"]) -> Float[Tensor, "d k"]:
        """The derivative of a gradient in each direction of the block."""
        weights = self.network.weights
        if self.network.padded:
            pull = vjp(gradient, weights)[1]
            return vmap(pull, in_dims=1, out_dims=1, chunk_size=COLUMNS)(block)[0]
        try:
            push = lambda column: jvp(gradient, (weights,), (column,))[1]  # noqa: E731
            return vmap(push, in_dims=1, out_dims=1, chunk_size=COLUMNS)(block)
        except NotImplementedError as reason:
            raise UnsupportedError(
                "a network that can be differentiated forward through its gradient", str(reason).split(".")[0], "GGN()"
            ) from reason


def canonical(likelihood: Likelihood, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Outputs and targets of a batch as the likelihood takes them."""
    f = likelihood.canonical(outputs)
    return f, likelihood.canonical_targets(f, batch.targets)
