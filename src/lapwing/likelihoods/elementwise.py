"""Targets that are numbers, independent given the outputs; of them yes-or-no labels and counts."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.functional import softplus

from lapwing.ground import probes
from lapwing.ground.data.checks import check_finite, check_whole_counts
from lapwing.ground.errors import DataError
from lapwing.ground.labels import check_target_shape, is_integral
from lapwing.ground.precision import wide
from lapwing.likelihoods.base import Likelihood
from lapwing.moments import Outputs
from lapwing.predictive.distributions import Counts, MultiLabel
from lapwing.predictive.links import LINEAR, Link


@dataclass(frozen=True, repr=False)
class Elementwise(Likelihood, abc.ABC):
    """A likelihood of as many numbers as ``mean`` has, independent given the outputs, so that B is diagonal."""

    hint: ClassVar[str]
    real: ClassVar[bool] = False

    def canonical_targets(self, outputs: Float[Tensor, "*batch c"], targets: Tensor) -> Tensor:
        """Targets ``[n, *event, m]`` in the dtype of the outputs; see ``Likelihood.canonical_targets``."""
        if targets.is_complex():
            hint = "torch.view_as_real(targets), for real and imaginary parts as outputs of their own"
            raise DataError(f"real targets for {type(self).__name__}", f"targets of type {targets.dtype}", hint)
        if self.real and (is_integral(targets) or targets.dtype == torch.bool):
            raise DataError(
                f"real targets for {type(self).__name__}",
                f"targets of type {targets.dtype}",
                "targets.float() for regression, Categorical() for class labels, Poisson() for counts",
            )
        like = self.mean(outputs)
        if like.shape[-1] == 1 and targets.shape == like.shape[:-1]:
            targets = targets.unsqueeze(-1)
        elif targets.ndim == like.ndim:
            targets = targets.movedim(self.class_dim, -1)
        check_target_shape(targets, tuple(like.shape), self.hint)
        return targets.to(like)

    @final
    def hessian_product(
        self, outputs: Float[Tensor, "*batch c"], targets: Shaped[Tensor, "*target"] | None = None
    ) -> Callable[[Float[Tensor, "... c"]], Float[Tensor, "... c"]]:
        """See ``Likelihood.hessian_product``; the diagonal of B, entry by entry."""
        diagonal = self.weight * self._diagonal(outputs)
        return lambda moved: diagonal * moved

    @final
    def hessian_entries(
        self, outputs: Float[Tensor, "*batch c"], targets: Shaped[Tensor, "*target"] | None = None
    ) -> tuple[Float[Tensor, "*batch c"], None]:
        """See ``Likelihood.hessian_entries``; there are none beside the diagonal."""
        return self.weight * self._diagonal(wide(outputs)), None

    @abc.abstractmethod
    def _diagonal(self, outputs: Tensor) -> Tensor:
        """The diagonal of B, for a weight of 1."""

    def _hessian(self, outputs: Float[Tensor, "*batch c"], targets: Tensor | None) -> Float[Tensor, "*batch c c"]:
        return torch.diag_embed(self._diagonal(outputs))

    def _root(self, outputs: Float[Tensor, "*batch c"], targets: Tensor | None) -> Float[Tensor, "*batch c c"]:
        return torch.diag_embed(self._diagonal(outputs).sqrt())

    def _count(self, targets: Tensor) -> int:
        """Each number is an observation."""
        return targets.numel()

    def _check_targets(self, outputs: Tensor, targets: Tensor) -> None:
        check_finite(targets, "targets", "dropping the examples without a target")


def check_logarithms(logs: Tensor, what: str, hint: str) -> None:
    """Refuse logarithms of numbers that are too large for their dtype.

    Raises:
        DataError: Naming the largest.
    """
    limit = math.log(torch.finfo(logs.dtype).max)
    if float(logs.max()) > limit:
        expected = f"log {what}s below {limit:.0f}, where exp overflows in {logs.dtype}"
        raise DataError(expected, f"a log {what} of {float(logs.max()):g}", hint)


def check_counts(log_rates: Tensor, targets: Tensor, likelihood: str) -> None:
    """Refuses rates that overflow, and targets that are no counts.

    Args:
        log_rates: Logarithms of the rates.
        targets: What should be counts, finite.
        likelihood: Whose they should be, in the message.

    Raises:
        DataError: Naming the largest rate, or the first target that is no count.
    """
    check_logarithms(log_rates, "rate", "scaling the counts, or a network in float64")
    check_whole_counts(targets, likelihood)


@final
@dataclass(frozen=True, repr=False)
class Bernoulli(Elementwise):
    """Several yes-or-no labels at once, given one logit each: p(y_i = 1 | f) = σ(f_i); B = diag(p (1 - p)).

    Example:
        >>> likelihood = Bernoulli()
        >>> likelihood.nll(torch.zeros(1, 3), torch.tensor([[0.0, 1.0, 1.0]]))
        tensor([2.0794])
    """

    hint: ClassVar[str] = "one 0 or 1 a logit, or Categorical() for class labels"

    @property
    def labels(self) -> bool:
        """See ``Likelihood.labels``."""
        return True

    def _nll(self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch"]:
        """-Σ_i y_i log σ(f_i) + (1 - y_i) log σ(-f_i) in nats."""
        yes = softplus(-outputs, threshold=LINEAR)
        no = softplus(outputs, threshold=LINEAR)
        return (targets * yes + (1 - targets) * no).sum(-1)

    def _score(
        self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]
    ) -> Float[Tensor, "*batch c"]:
        """Residual y - p, as y σ(-f) - (1 - y) σ(f)."""
        return targets * torch.sigmoid(-outputs) - (1 - targets) * torch.sigmoid(outputs)

    def _diagonal(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """P (1 - p)."""
        return torch.sigmoid(outputs) * torch.sigmoid(-outputs)

    def draw(
        self, outputs: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*batch c"]:
        """1 with probability σ(f), else 0."""
        normal = probes.gaussian(outputs.shape, like=outputs, generator=generator)
        return (torch.special.ndtr(normal) < torch.sigmoid(outputs)).to(outputs)

    def mean(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """Probabilities σ(f)."""
        return torch.sigmoid(outputs)

    def _predictive(self, outputs: Outputs, link: Link, samples: int, generator: torch.Generator | None) -> MultiLabel:
        return MultiLabel.of(outputs, link, samples=samples, generator=generator)

    def _check_targets(self, outputs: Tensor, targets: Tensor) -> None:
        wrong = targets[(targets != 0) & (targets != 1)]
        if wrong.numel():
            raise DataError(
                "targets that are 0 or 1 for Bernoulli",
                f"{wrong.numel()} others, the first {wrong[0].item():g}",
                "Categorical() for class labels, or Gaussian() for regression",
            )


@final
@dataclass(frozen=True, repr=False)
class Poisson(Elementwise):
    """Counts, given the logarithms of their rates: p(y | f) = exp(f)^y e^{-exp(f)} / y!; B = diag(exp f).

    Example:
        >>> Poisson().mean(torch.zeros(1, 1))
        tensor([[1.]])
    """

    hint: ClassVar[str] = "targets with one count an output"

    @property
    def counts(self) -> bool:
        """See ``Likelihood.counts``."""
        return True

    def _nll(self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch"]:
        """Σ_i exp(f_i) - y_i f_i + log y_i! in nats."""
        return (outputs.exp() - targets * outputs + torch.lgamma(targets + 1)).sum(-1)

    def _score(
        self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]
    ) -> Float[Tensor, "*batch c"]:
        """Residual y - exp(f)."""
        return targets - outputs.exp()

    def _diagonal(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """exp(f)."""
        return outputs.exp()

    def draw(
        self, outputs: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*batch c"]:
        """Counts with rate exp(f)."""
        return probes.poisson(outputs.exp(), generator=generator)

    def mean(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """Rates exp(f)."""
        return outputs.exp()

    def _predictive(self, outputs: Outputs, link: Link, samples: int, generator: torch.Generator | None) -> Counts:
        return Counts.of(outputs)

    def _check_targets(self, outputs: Tensor, targets: Tensor) -> None:
        super()._check_targets(outputs, targets)
        check_counts(outputs, targets, "Poisson")
