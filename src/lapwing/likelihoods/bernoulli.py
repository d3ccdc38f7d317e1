"""Several yes-or-no labels at once, given one logit each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from lapwing.ground import probes
from lapwing.ground.errors import DataError
from lapwing.likelihoods.base import Likelihood
from lapwing.likelihoods.targets import check_shape, elementwise

_LINEAR = 40.0  # from where log(1 + e^x) is x to the last digit of float64
_HINT = "one 0 or 1 a logit, or Categorical() for class labels"


@final
@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """p(y_i = 1 | f) = σ(f_i), independently over the c labels; B = diag(p (1 - p)).

    Example:
        >>> likelihood = Bernoulli()
        >>> likelihood.nll(torch.zeros(1, 3), torch.tensor([[0.0, 1.0, 1.0]]))
        tensor([2.0794])
    """

    def canonical_targets(self, outputs: Float[Tensor, "*batch c"], targets: Tensor) -> Tensor:
        """Targets ``[n, *event, c]`` in the dtype of the outputs; see ``Likelihood.canonical_targets``."""
        return elementwise(targets, outputs, self.class_dim, _HINT)

    def _nll(self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch"]:
        """-Σ_i y_i log σ(f_i) + (1 - y_i) log σ(-f_i) in nats."""
        yes, no = softplus(-outputs, threshold=_LINEAR), softplus(outputs, threshold=_LINEAR)
        return (targets * yes + (1 - targets) * no).sum(-1)

    def _score(
        self, outputs: Float[Tensor, "*batch c"], targets: Float[Tensor, "*batch c"]
    ) -> Float[Tensor, "*batch c"]:
        """Residual y - p, as y σ(-f) - (1 - y) σ(f)."""
        return targets * torch.sigmoid(-outputs) - (1 - targets) * torch.sigmoid(outputs)

    def _hessian(
        self, outputs: Float[Tensor, "*batch c"], targets: Tensor | None = None
    ) -> Float[Tensor, "*batch c c"]:
        """B = diag(p (1 - p))."""
        return torch.diag_embed(torch.sigmoid(outputs) * torch.sigmoid(-outputs))

    def _root(self, outputs: Float[Tensor, "*batch c"], targets: Tensor | None = None) -> Float[Tensor, "*batch c c"]:
        """S = diag(√(p (1 - p)))."""
        return torch.diag_embed((torch.sigmoid(outputs) * torch.sigmoid(-outputs)).sqrt())

    def draw(
        self, outputs: Float[Tensor, "*batch c"], *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "*batch c"]:
        """1 with probability σ(f), else 0."""
        normal = probes.gaussian(outputs.shape, like=outputs, generator=generator)
        return (torch.special.ndtr(normal) < torch.sigmoid(outputs)).to(outputs)

    def mean(self, outputs: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch c"]:
        """Probabilities σ(f)."""
        return torch.sigmoid(outputs)

    def _count(self, targets: Tensor) -> int:
        """Number of yes-or-no labels, n · c."""
        return targets.numel()

    def _check_targets(self, outputs: Tensor, targets: Tensor) -> None:
        check_shape(targets, tuple(outputs.shape), _HINT)
        wrong = targets[(targets != 0) & (targets != 1)]
        if wrong.numel():
            raise DataError(
                "targets that are 0 or 1 for Bernoulli",
                f"{wrong.numel()} others, the first {wrong[0].item():g}",
                "Categorical() for class labels, or Gaussian() for regression",
            )
