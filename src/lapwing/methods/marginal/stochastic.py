"""The log-determinant and its gradient by random probes, from products alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.errors import check_count, check_positive
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.jacobian import BatchJacobian
from lapwing.linalg.cg import conjugate_gradients
from lapwing.linalg.logdet import log_determinant
from lapwing.linalg.operator import FunctionOperator, Operator
from lapwing.methods.marginal.batch import LogDeterminant, MiniBatch


@final
@dataclass(frozen=True)
class StochasticLanczos(LogDeterminant):
    """Value by stochastic Lanczos quadrature, gradient by solves: neither ``B c d`` numbers nor a factorisation.

    With ``C = I + N/B Φ Φᵀ`` on the rows of the batch, ``Φ = s^½ Sᵀ J A^-½``, and probes z of independent signs,

        ∂ log det C = tr(C⁻¹ ∂C) = E[zᵀ ∂C w],   C w = z

    The solves are by conjugate gradients and are not differentiated; ``zᵀ C w`` is, with z and w held fixed. Both value
    and gradient are those of ``Gram`` on average, up to the tolerances, and share its bias on mini-batches.

    Args:
        samples: Probes.
        steps: Most Lanczos steps of the value.
        rtol: Relative residual of the solves.

    Raises:
        ConfigError: If one is not positive.

    Cost:
        A few dozen products with J and its adjoint a batch, ``samples`` columns each, on layer factors that are kept
        for the batch where the rows of an example are small, and two backward passes a probe whose graph is kept.

    Example:
        >>> import lapwing as lw
        >>> from lapwing.methods.marginal import MarginalLikelihood
        >>> model, x, y = torch.nn.Linear(2, 1), torch.randn(8, 2), torch.randn(8, 1)
        >>> choices = {"log_det": StochasticLanczos(), "warm_up": 0, "settle": 0}
        >>> marginal = MarginalLikelihood(model, lw.Gaussian(), data_size=8, **choices)
        >>> marginal.loss(x, y).backward()
    """

    samples: int = 8
    steps: int = 30
    rtol: float = 1e-4

    def __post_init__(self) -> None:
        check_count("samples", self.samples)
        check_count("steps", self.steps)
        check_positive("rtol", self.rtol)

    def ratio(self, batch: MiniBatch, generator: torch.Generator | None = None) -> Float[Tensor, ""]:
        """Value and gradient, each unbiased for those of the batch; see ``LogDeterminant.ratio``."""
        live, share = batch.live, batch.share
        rows, like = live.cotangents.shape[:2], live.network.like.detach()
        with torch.no_grad():
            operator = inner_operator(batch)
            value = log_determinant(operator, samples=self.samples, steps=self.steps, generator=generator).value
            z = probes.rademacher((rows.numel(), self.samples), like=like, generator=generator)
            w = conjugate_gradients(operator, z, rtol=self.rtol).value
        left, right = (live.pull(block.unflatten(0, rows)) for block in (z, w))
        deviations = batch.hyper.deviations(like)
        products = [
            ((a * deviations).double() * (b * deviations).double()).sum() for a, b in zip(left, right, strict=True)
        ]
        moving = share * batch.hyper.scale * torch.stack(products).mean()
        return value + moving - moving.detach()


def inner_operator(batch: MiniBatch) -> Operator:
    """``I + N/B Φ Φᵀ`` on the rows of a batch, through products alone; not differentiable."""
    live = batch.live
    network = Network.of(live.network.module)
    jacobian = BatchJacobian(Model(network, batch.survey, live.likelihood), live.inputs, keep=True)
    cotangents, rows = live.cotangents.detach(), live.cotangents.shape[:2]
    variances = batch.hyper.deviations(network.like).detach().square()[:, None]
    factor = batch.share * float(batch.hyper.scale.detach())

    def product(block: Tensor) -> Tensor:
        pushed = torch.einsum("kn...,knj->n...j", cotangents, block.unflatten(0, rows))
        moved = jacobian.push(variances * jacobian.pull(pushed.flatten(0, -2))).view(pushed.shape)
        return block + factor * torch.einsum("kn...,n...j->knj", cotangents, moved).flatten(0, 1)

    return FunctionOperator(product, product, size=(rows.numel(), rows.numel()), like=network.like)
