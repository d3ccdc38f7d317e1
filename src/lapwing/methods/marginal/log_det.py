"""The log-determinant of the posterior precision as one mini-batch sees it: exact for the batch, or by probes."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data.inputs import count
from lapwing.ground.errors import TooLargeError, check_count, check_positive
from lapwing.ground.precision import wide
from lapwing.jacobian.layers.capture import Survey
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.linalg.cg import conjugate_gradients
from lapwing.linalg.log_determinant import log_determinant
from lapwing.linalg.operators.base import FunctionOperator, Operator
from lapwing.linear.log_det_ratio import log_det_one_plus
from lapwing.methods.marginal.hyper import LearnedHyperparameters
from lapwing.methods.marginal.live_batch import LiveBatch


@final
@dataclass(frozen=True, eq=False)
class MiniBatch:
    """The posterior precision estimated from B of N examples, ``Λ̂ = N/B Σ_i J_iᵀ s B_i J_i + A`` (Brack 2023, 3.24).

    The factors s on the noise precision of each output are part of the roots, ``s B = (S s^½)(S s^½)ᵀ``: B is diagonal.

    Args:
        live: The batch, differentiable in the weights.
        hyper: Precisions and noise.
        survey: What is known of the network's layers.
        total: N, examples in the training data.
    """

    live: LiveBatch
    hyper: LearnedHyperparameters
    survey: Survey
    total: int

    @property
    def examples(self) -> int:
        """B, examples in the batch."""
        return count(self.live.inputs)

    @property
    def share(self) -> float:
        """N / B."""
        return self.total / self.examples

    @property
    def roots(self) -> Float[Tensor, " k"]:
        """``s^½`` of each row of an example: its outputs, position by position."""
        outputs = self.live.outputs.shape[-1]
        positions = len(self.live.cotangents) // outputs
        return self.hyper.scales(outputs).sqrt().repeat(positions)

    def rows(self, mixing: Float[Tensor, "s k n"] | None = None) -> Float[Tensor, "n s d"]:
        """``Φ = s^½ Sᵀ J A^-½`` in float64, example by example, ``N/B`` left out; ``mixing`` as in ``LiveBatch.rows``.

        Its squared singular values are what the data add to each prior precision of one.
        """
        mixed = None if mixing is None else mixing * self.roots[:, None].to(mixing)
        rows = self.live.rows(mixed)
        rows = wide(rows * self.hyper.deviations(rows))
        return rows * self.roots[:, None] if mixing is None else rows


@dataclass(frozen=True)
class LogDeterminant(abc.ABC):
    """A way to estimate ``log det Λ / det A`` from a mini-batch, differentiable in weights, precisions and noise."""

    @abc.abstractmethod
    def ratio(self, batch: MiniBatch, generator: torch.Generator | None) -> Float[Tensor, ""]:
        """The estimate of ``log det(I + A^-½ G A^-½)``, nats, float64.

        Args:
            batch: The mini-batch.
            generator: Source of randomness, where it needs one.
        """


@final
@dataclass(frozen=True)
class GramDeterminant(LogDeterminant):
    """``log det(I + N/B Φ Φᵀ)`` with ``Φ = s^½ Sᵀ J A^-½``: exact for the batch, by a Cholesky factorisation.

    By Sylvester's identity it equals ``log det Λ̂ / det A``; ``ΦᵀΦ`` takes its place where there are fewer weights than
    rows. The log-determinant is concave, so that of ``Λ̂`` is below that of Λ on average, the more the smaller the
    batch: a batch sees at most B c of the directions the data determine, and its gradient in a prior precision pushes
    that down. All the data in one batch make it exact.

    Args:
        max_bytes: Largest rows and Gram matrix together it will make for a batch.

    Raises:
        TooLargeError: If they would be larger; nothing is computed.

    Cost:
        Explicit rows, ``B c d`` numbers and their graph; ``(B c)² d`` or ``B c d²`` operations.

    Example:
        >>> import lapwing as lw
        >>> from lapwing.methods.marginal import MarginalLikelihood
        >>> model, x, y = torch.nn.Linear(2, 1), torch.randn(8, 2), torch.randn(8, 1)
        >>> marginal = MarginalLikelihood(model, lw.Gaussian(), lw.Isotropic(2.0), data_size=8, warm_up=0, settle=0)
        >>> posterior = lw.Laplace(lw.Gaussian(), prior=lw.Isotropic(2.0)).fit(model, (x, y))
        >>> abs(marginal.loss(x, y).item() + posterior.log_marginal()) < 1e-4
        True
    """

    max_bytes: int = 2**32

    def __post_init__(self) -> None:
        check_count("max_bytes", self.max_bytes)

    def ratio(self, batch: MiniBatch, generator: torch.Generator | None = None) -> Float[Tensor, ""]:
        """Exact for the batch; see ``LogDeterminant.ratio``."""
        number = math.prod(batch.live.cotangents.shape[:2])
        size = batch.live.network.size
        needed = torch.float64.itemsize * (number * size + min(number, size) ** 2)
        if needed > self.max_bytes:
            raise TooLargeError(
                f"Jacobian rows of a batch and their Gram matrix of at most {self.max_bytes:,} bytes",
                f"{number} rows of {size} weights, {needed:,} bytes",
                "smaller batches; log_det=StochasticLanczos() or Bound(samples=2), which make fewer rows; log_det=None "
                "with updates=ByEvidence(); requires_grad_(False) for all but the last layer; or "
                "GramDeterminant(max_bytes=...)",
            )
        rows = batch.share**0.5 * batch.rows().flatten(0, 1)
        return log_det_one_plus(rows @ rows.mT if len(rows) <= rows.shape[1] else rows.mT @ rows)


EXACT = GramDeterminant()
"""The default."""


@final
@dataclass(frozen=True)
class StochasticLanczos(LogDeterminant):
    """Value by stochastic Lanczos quadrature, gradient by solves: neither ``B c d`` numbers nor a factorisation.

    With ``C = I + N/B Φ Φᵀ`` on the rows of the batch, ``Φ = s^½ Sᵀ J A^-½``, and probes z of independent signs,

        ∂ log det C = tr(C⁻¹ ∂C) = E[zᵀ ∂C w],   C w = z

    The solves are by conjugate gradients and are not differentiated; ``zᵀ C w`` is, with z and w held fixed. Both value
    and gradient are those of ``GramDeterminant`` on average, up to the tolerances, and share its bias on mini-batches.

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
        live = batch.live
        rows = live.cotangents.shape[:2]
        like = live.network.like.detach()
        with torch.no_grad():
            operator = inner_operator(batch)
            value = log_determinant(operator, samples=self.samples, steps=self.steps, generator=generator).value
            z = probes.rademacher((rows.numel(), self.samples), like=like, generator=generator)
            w = conjugate_gradients(operator, z, rtol=self.rtol).value
        roots = batch.roots[:, None, None]
        deviations = batch.hyper.deviations(like)
        left = live.pull(roots.to(z) * z.unflatten(0, rows))
        right = live.pull(roots.to(w) * w.unflatten(0, rows))
        products = list[Tensor]()
        for a, b in zip(left, right, strict=True):
            products.append((wide(a * deviations) * wide(b * deviations)).sum())
        moving = batch.share * torch.stack(products).mean()
        return value + moving - moving.detach()


def inner_operator(batch: MiniBatch) -> Operator:
    """``I + N/B Φ Φᵀ`` on the rows of a batch, through products alone; not differentiable."""
    live = batch.live
    network = Network.of(live.network.module, live.network.output)
    jacobian = Linearisation(Model(network, batch.survey, live.likelihood)).on(live.inputs, keep=True)
    rows = live.cotangents.shape[:2]
    roots = batch.roots.detach().to(live.cotangents)
    cotangents = torch.einsum("k,kn...->kn...", roots, live.cotangents.detach())
    variances = batch.hyper.deviations(network.like).detach().square()[:, None]

    def product(block: Tensor) -> Tensor:
        moved = jacobian.pull(torch.einsum("kn...,knj->jn...", cotangents, block.unflatten(0, rows)))
        pushed = jacobian.push(variances * moved)
        return block + batch.share * torch.einsum("kn...,jn...->knj", cotangents, pushed).flatten(0, 1)

    return FunctionOperator(product, product, size=(rows.numel(), rows.numel()), like=network.like)
