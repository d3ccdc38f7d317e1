"""Small linear models of every kind, each with its features as a dense matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import cast

import torch
from torch import Tensor
from torch.func import jacrev

import lapwing as lw
from lapwing.ground.data import Data
from lapwing.ground.tree import Layout
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.products.linearisation import Linearisation
from lapwing.jacobian.survey import surveyed
from lapwing.likelihoods import Likelihood
from lapwing.linear.matrix import Matrix
from lapwing.linear.model import Chunk, Directions, LinearModel
from tests.posterior_cases import labels, mlp, normal

N = 7


@dataclass(frozen=True, eq=False)
class Projected:
    """``T h(w, ·)``: line integrals of what a model says at some points. An example is a row of T."""

    inner: LinearModel
    points: Tensor
    rays: Tensor
    targets: Tensor
    likelihood: Likelihood
    event = torch.Size([1])

    @cached_property
    def data(self) -> Data:
        return Data(list(zip(self.rays.split(3), self.targets.split(3), strict=True)))

    @property
    def weights(self) -> Tensor:
        return self.inner.weights

    @property
    def layout(self) -> Layout:
        return self.inner.layout

    def visit(self, columns: int = 1) -> Iterator[Chunk]:
        for batch in self.data:
            chunk = self.at(batch.inputs)
            yield Chunk(chunk.inputs, chunk.outputs, batch.targets, chunk.push, chunk.pull, chunk.width, None)

    def held(self, columns: int = 1) -> bool:
        return False

    def at(self, inputs: Tensor) -> Chunk:
        chunk = self.inner.at(self.points)
        f = inputs @ chunk.outputs.flatten()

        def push(block: Tensor) -> Tensor:
            return (chunk.push(block).flatten(1) @ inputs.mT)[..., None]

        def pull(block: Tensor) -> Tensor:
            return chunk.pull((block[..., 0] @ inputs).view(-1, *chunk.outputs.shape))

        return Chunk(inputs, f[:, None], f.new_empty(0), push, pull, 64, None)

    def rows(self, inputs: Tensor, directions: Directions) -> Iterator[Tensor]:
        chunk = self.at(inputs)
        for cotangents in directions(chunk.outputs, slice(0, len(inputs))):
            k, n = cotangents.shape[:2]
            apart = torch.einsum("kne,nm->knme", cotangents, torch.eye(n, dtype=cotangents.dtype)).flatten(0, 1)
            yield chunk.pull(apart).mT.view(k, n, -1).movedim(0, 1)

    def diagonal(self) -> Tensor:
        rows = torch.cat([chunk.pull(torch.eye(len(chunk.outputs)).double()[..., None]) for chunk in self.visit()], 1)
        return self.likelihood.hessian(rows.new_zeros(1, 1), rows.new_zeros(1, 1)).item() * rows.square().sum(1)

    def check(self) -> None:
        self.inner.check()


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
            return Case(model, jacobian(x), model.at(x).outputs, y, x, new, jacobian(new))
        case "matrix":
            features, others, w = normal(N, c, 5), normal(4, c, 5, seed=3), normal(5, seed=4)
            model = Matrix(features, y, likelihood, w, examples=3)
            return Case(model, features, features @ w, y, features, others, others)
        case "projector":
            inner, jacobian = network(likelihood, x, y)
            rays, others, seen = normal(N, 8, seed=5), normal(3, 8, seed=6), jacobian(new).flatten(0, 1)
            model = Projected(inner, new, rays, normal(N, 1, seed=7), likelihood)
            f = rays @ inner.at(new).outputs.flatten()
            return Case(
                cast("LinearModel", model), (rays @ seen)[:, None], f[:, None], model.targets, rays, others,
                (others @ seen)[:, None],
            )  # fmt: skip
    raise LookupError(name)


CASES = ("network gaussian", "network categorical", "matrix gaussian", "matrix categorical", "projector gaussian")
