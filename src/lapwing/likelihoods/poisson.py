"""Counts, given the logarithm of their rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data import check_finite
from lapwing.ground.errors import DataError
from lapwing.likelihoods.base import Likelihood
from lapwing.likelihoods.targets import check_shape, elementwise


@final
@dataclass(frozen=True)
class Poisson(Likelihood):
    """p(y | f) = exp(f)^y e^{-exp(f)} / y!, independently over the c outputs; B = diag(exp f).

    Example:
        >>> Poisson().mean(torch.zeros(1, 1))
        tensor([[1.]])
    """

    def canonical_targets(self, outputs: Float[Tensor, "*batch c"], targets: Tensor) -> Tensor:
        """Counts ``[n, *event, c]`` in the dtype of the outputs; see ``Likelihood.canonical_targets``."""
        return elementwise(targets, outputs, self.class_dim, "targets with one count an output")

    def _nll(self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch"]:
        """Σ_i exp(f_i) - y_i f_i + log y_i! in nats."""
        return (outputs.exp() - targets * outputs + torch.lgamma(targets + 1)).sum(-1)

    def _score(
        self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]
    ) -> Float[Tensor, "*batch c"]:
        """Residual y - exp(f)."""
        return targets - outputs.exp()

    def _hessian(
        self, outputs: Float[Tensor, "*batch c"], targets: Tensor | None = None
    ) -> Float[Tensor, "*batch c c"]:
        """B = diag(exp f)."""
        return torch.diag_embed(outputs.exp())

    def _root(self, outputs: Float[Tensor, "*batch c"], targets: Tensor | None = None) -> Float[Tensor, "*batch c c"]:
        """S = diag(exp(f / 2))."""
        return torch.diag_embed((0.5 * outputs).exp())

    def draw(
        self, outputs: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*batch c"]:
        """Counts with rate exp(f), drawn on the generator's device as ``probes`` does."""
        device = probes.device_of(generator)
        return torch.poisson(outputs.exp().to(device), generator=generator).to(outputs)

    def mean(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """Rates exp(f)."""
        return outputs.exp()

    def _count(self, targets: Tensor) -> int:
        """Number of counts observed, n · c."""
        return targets.numel()

    def _check_targets(self, outputs: Tensor, targets: Tensor) -> None:
        limit = math.log(torch.finfo(outputs.dtype).max)
        if float(outputs.max()) > limit:
            raise DataError(
                f"log rates below {limit:.0f}, where exp overflows in {outputs.dtype}",
                f"a log rate of {float(outputs.max()):g}",
                "scaling the counts, or a network in float64",
            )
        check_shape(targets, tuple(outputs.shape), "targets with one count an output")
        check_finite(targets, "targets", "dropping the examples without a target")
        wrong = targets[(targets < 0) | (targets != targets.round())]
        if wrong.numel():
            raise DataError(
                "counts 0, 1, 2, ... for Poisson",
                f"{wrong.numel()} other targets, the first {wrong[0].item():g}",
                "Gaussian() for real targets",
            )
