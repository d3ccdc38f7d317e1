"""The loss of the tangent model and its curvature at any weights; what the last ones took is at hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ShapeError
from lapwing.jacobian.model import Model
from lapwing.jacobian.products.gauss_newton import GGNProduct
from lapwing.jacobian.products.linear import Shift
from lapwing.linalg import Diagonal, Structured
from lapwing.linear.problem import Problem

Target: TypeAlias = Literal["affine", "simplified"]
"""Whether the tangent model has the network's outputs at its trained weights as an offset."""


@final
@dataclass(frozen=True, eq=False)
class Points:
    """Weights w of the tangent model.

    Args:
        training: The network, its likelihood, and its data.
        product: The curvature at the trained weights.
        target: ``"affine"`` or ``"simplified"``.
    """

    training: Model
    product: GGNProduct
    target: Target
    _last: list[tuple[Tensor, GGNProduct]] = field(default_factory=list, init=False, repr=False)
    _kept: dict[object, Structured] = field(default_factory=dict, init=False, repr=False)

    @property
    def affine(self) -> bool:
        """Whether the outputs at the trained weights are added."""
        return self.target == "affine"

    def checked(self, weights: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
        """The weights, if they are as many as are uncertain.

        Raises:
            MismatchError: If the network was written to since.
            ShapeError: If they are not.
        """
        self.training.network.check_unchanged()
        like = self.training.network.weights
        if weights.shape != like.shape:
            hint = "the uncertain weights as one flat vector"
            raise ShapeError(f"weights of shape {list(like.shape)}", f"{list(weights.shape)}", hint)
        return weights.detach().to(like)

    def curvature(self, weights: Float[Tensor, " d"]) -> GGNProduct:
        """G with B at ``h(w, ·)``."""
        for known, curvature in list(self._last):
            if torch.equal(known, weights):
                return curvature
        found = self.product.at(weights, affine=self.affine)
        self._last[:] = [(weights, found)]
        return found

    def know(self, weights: Float[Tensor, " d"], shift: Shift) -> None:
        """Have the outputs at w at hand from now on."""
        self._last[:] = [(weights, self.product.shifted(shift))]

    def forget(self) -> None:
        """Compute the next outputs afresh: those at the end of a line differ from them by rounding."""
        self._last.clear()

    def score(self, weights: Float[Tensor, " d"]) -> tuple[Float[Tensor, " d"], float, float]:
        """Gradient of the log likelihood at ``h(w, ·)``, the negative log likelihood, and the misfit."""
        likelihood = self.training.likelihood
        total, nll, misfit = torch.zeros_like(weights), 0.0, 0.0
        for chunk, h in self.curvature(weights).visit():
            likelihood.check(h, chunk.targets)
            nll += float(likelihood.nll(h, chunk.targets).double().sum())
            misfit += float(likelihood.misfit(h, chunk.targets))
            total += chunk.pull(likelihood.score(h, chunk.targets)[None])[:, 0]
        return total, nll, misfit

    def problem(self, weights: Float[Tensor, " d"], prior: Diagonal, scale: float) -> Problem:
        """Newton's matrix; approximations of G are shared by all of them."""
        problem = Problem.of(self.training, prior, scale, curvature=self.curvature(weights))
        return replace(problem, kept=self._kept)
