"""Small linear models of every kind, each with its features as a dense matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.func import jacrev

import lapwing as lw
from lapwing.ct.observed import Observed
from lapwing.ground.data.sources import Data
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.jacobian.survey import surveyed
from lapwing.likelihoods import Likelihood
from lapwing.linear.model import LinearModel, Matrix
from tests.posterior_cases import labels, mlp, normal

N = 7


@dataclass(frozen=True, eq=False)
class Rays:
    """Line integrals, given as a matrix."""

    matrix: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        rows, pixels = self.matrix.shape
        return rows, pixels

    def push(self, v: Tensor) -> Tensor:
        return self.matrix @ v

    def pull(self, u: Tensor) -> Tensor:
        return self.matrix.mT @ u


@dataclass(frozen=True, eq=False)
class Case:
    """A linear model, its features ``[n, c, d]``, canonical outputs and targets, and the same at new inputs."""

    model: LinearModel
    features: Tensor
    outputs: Tensor
    targets: Tensor
    inputs: Tensor
    new: Tensor
    new_features: Tensor

    def hessian(self, w: Tensor | None = None) -> Tensor:
        """B at w̃, or at other weights, as one dense matrix."""
        f = self.outputs if w is None else self.outputs + self.features @ (w - self.model.weights)
        return torch.block_diag(*self.model.likelihood.hessian(f, self.targets))

    @property
    def ggn(self) -> Tensor:
        """``Jᵀ B J``."""
        j = self.features.flatten(0, 1)
        return j.mT @ self.hessian() @ j


def network(likelihood: Likelihood, x: Tensor, y: Tensor) -> tuple[Linearisation, Callable[[Tensor], Tensor]]:
    """A small network, and its outputs' Jacobian by another way."""
    net = Network.of(mlp(3 if isinstance(likelihood, lw.Categorical) else 2))
    model = Linearisation(
        surveyed(net, likelihood, Data(list(zip(x.split(3), y.split(3), strict=True)), like=net.like))
    )

    def jacobian(inputs: Tensor) -> Tensor:
        return jacrev(lambda w: likelihood.canonical(net(inputs, net.with_weights(w))))(net.weights)

    return model, jacobian


@cache
def case(name: str) -> Case:
    """One of ``CASES``."""
    kind, _, loss = name.partition(" ")
    classes = loss == "categorical"
    likelihood = lw.Categorical() if classes else lw.Gaussian(2.5)
    c = 3 if classes else 2
    x, new = normal(N, 3), normal(4, 3, seed=2)
    y = labels(N, classes=3) if classes else normal(N, 2, seed=1)
    match kind:
        case "network":
            model, jacobian = network(likelihood, x, y)
            return Case(model, jacobian(x), model.on(x).outputs, y, x, new, jacobian(new))
        case "matrix":
            features, others, w = normal(N, c, 5), normal(4, c, 5, seed=3), normal(5, seed=4)
            model = Matrix(features, y, likelihood, w, examples=3)
            return Case(model, features, features @ w, y, features, others, others)
        case "projector" | "rays":
            noisy = lw.Gaussian(2.5)
            net = Network.of(mlp(8))
            z, rays, new = normal(1, 3), normal(N, 8, seed=5), torch.tensor([4, 0, 2])
            image = Linearisation(surveyed(net, lw.Gaussian(), Data([(z, normal(1, 8))], like=net.like)))
            seen = rays @ jacrev(lambda w: net(z, net.with_weights(w))[0])(net.weights)
            memory = 2**20 if kind == "rays" else 1
            model = Observed(image, Rays(rays), normal(N, seed=7), noisy, examples=3, memory=memory)
            f = (rays @ net(z)[0].detach())[:, None]
            return Case(model, seen[:, None], f, model.targets[:, None], torch.arange(N), new, seen[new][:, None])
    raise LookupError(name)


CASES = (
    "network gaussian",
    "network categorical",
    "matrix gaussian",
    "matrix categorical",
    "projector gaussian",
    "rays gaussian",
)
