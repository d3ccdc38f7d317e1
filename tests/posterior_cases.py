"""Small networks with data, and what their posteriors must be: dense matrices from automatic differentiation."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import lapwing as lw
from lapwing.ground.data.sources import Data
from lapwing.ground.errors import LapwingError
from lapwing.ground.layout import Layout
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Likelihood
from lapwing.priors import Prior
from lapwing.structures import Structure
from lapwing.structures.base import FitTask
from lapwing.structures.selection import Selection

P = TypeVar("P", bound=lw.Posterior)


def limited(posterior: P, **limits: Any) -> P:
    """A posterior whose passes over data and inputs have other limits than the usual ones."""
    model = posterior.model
    return replace(posterior, model=replace(model, limits=replace(model.limits, **limits)))


def refused(kind: type[LapwingError], fragment: str) -> AbstractContextManager[object]:
    """The code inside fails with an error of this kind that says this."""
    return pytest.raises(kind, match=re.escape(fragment))


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(*shape: int, classes: int, seed: int = 1) -> Tensor:
    """Uniform labels."""
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(seed))


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A network in float64 whose weights depend on the seed alone, in train mode as users leave it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build().double()


def mlp(outputs: int = 2) -> nn.Module:
    """Two linear layers on three inputs: 4 · 3 + 4 + 5 · ``outputs`` weights."""
    return seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, outputs)))


def convnet(outputs: int = 3) -> nn.Module:
    """Convolution, batch norm, linear layer on images of 1 × 5 × 5."""

    def build() -> nn.Module:
        norm = nn.BatchNorm2d(2)
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
        layers = (nn.Conv2d(1, 2, 3, stride=2), norm, nn.ReLU(), nn.Flatten(), nn.Linear(8, outputs))
        return nn.Sequential(*layers)

    return seeded(build)


class Tokens(nn.Module):
    """A label for every token: embedding, layer norm, linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.out = nn.Embedding(5, 3), nn.LayerNorm(3), nn.Linear(3, 3)

    def forward(self, ids: Tensor) -> Tensor:
        mixed = self.embed(ids) + self.embed(ids).mean(1, keepdim=True)
        return self.out(torch.tanh(self.norm(mixed)))


def pixels() -> nn.Module:
    """A label for every pixel, classes on axis 1."""
    return seeded(lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 3, 1)))


@dataclass(frozen=True, eq=False)
class Problem:
    """A network, its likelihood, training data, and new inputs."""

    model: nn.Module
    likelihood: Likelihood
    x: Tensor
    y: Tensor
    new: Tensor

    def batches(self, size: int = 6) -> list[tuple[Tensor, Tensor]]:
        """The training data as a list of batches."""
        return list(zip(self.x.split(size), self.y.split(size), strict=True))

    def fit(self, recipe: lw.Laplace, **options: Any) -> lw.Posterior:
        """The posterior of a recipe."""
        return recipe.fit(self.model, self.batches(), **options)

    def task(self, recipe: lw.Laplace, **limits: Any) -> FitTask:
        """What the structure of a recipe is fitted to, where passes over the data have other limits."""
        data = Data(self.batches(), like=torch.zeros(0).double())
        task = recipe.task(self.model, data)
        model = task.model
        return replace(task, model=replace(model, limits=replace(model.limits, **limits)))


def problem(name: str) -> Problem:
    """One of ``PROBLEMS``."""
    x, new = normal(10, 3), normal(4, 3, seed=2)
    match name:
        case "gaussian":
            return Problem(mlp(), lw.Gaussian(2.5, shared=True), x, normal(10, 2, seed=1), new)
        case "gaussian-per-output":
            return Problem(mlp(), lw.Gaussian((0.5, 3.0), shared=True), x, normal(10, 2, seed=1), new)
        case "categorical":
            y = labels(10, classes=3)
            y[3] = -100
            return Problem(mlp(3), lw.Categorical(), x, y, new)
        case "bernoulli":
            return Problem(mlp(), lw.Bernoulli(), x, (normal(10, 2, seed=1) > 0).double(), new)
        case "poisson":
            return Problem(mlp(), lw.Poisson(), x, labels(10, 2, classes=4), new)
        case "negative-binomial":
            return Problem(mlp(), lw.NegativeBinomial(0.7), x, labels(10, 2, classes=4), new)
        case "student-t":
            return Problem(mlp(), lw.StudentT(3.0, 0.7), x, 2 * normal(10, 2, seed=1), new)
        case "heteroscedastic":
            return Problem(mlp(4), lw.HeteroscedasticGaussian(), x, normal(10, 2, seed=1), new)
        case "images":
            images = normal(10, 1, 5, 5), normal(4, 1, 5, 5, seed=2)
            return Problem(convnet(), lw.Categorical(), images[0], labels(10, classes=3), images[1])
        case "tokens":
            y = labels(8, 4, classes=3)
            y[:, -1] = -100
            ids = labels(8, 4, classes=5, seed=0), labels(3, 4, classes=5, seed=2)
            return Problem(seeded(Tokens), lw.Categorical(event_dim=1), ids[0], y, ids[1])
        case "pixels":
            y = labels(5, 3, 2, classes=3)
            likelihood = lw.Categorical(event_dim=2, class_dim=1)
            return Problem(pixels(), likelihood, normal(5, 1, 3, 2), y, normal(2, 1, 3, 2, seed=2))
    raise LookupError(name)


PROBLEMS = (
    "gaussian",
    "gaussian-per-output",
    "categorical",
    "bernoulli",
    "poisson",
    "negative-binomial",
    "student-t",
    "heteroscedastic",
    "images",
    "tokens",
    "pixels",
)

STRUCTURES: dict[str, Structure] = {
    "full-weights": lw.Full(view="weights"),
    "full-functions": lw.Full(view="functions"),
    "diagonal": lw.Diagonal(),
    "kfac": lw.KFAC(),
    "kfac-reduce-separate": lw.KFAC(sharing="reduce", bias="separate"),
    "kfac-corrected": lw.EKFAC(),
    "tridiagonal": lw.structures.TridiagonalKFAC(),
    "low-rank": lw.LowRank(1000),
    "nystrom": lw.Nystrom(1000, samples=1000, tolerance=1e-13),
}

WEIGHTS: dict[str, Selection] = {
    "all": lw.All(),
    "last-layer": lw.LastLayer(),
    "biases": lw.Names(("*bias",)),
    "subnetwork": lw.Subnetwork(7, by="magnitude"),
}


def prior_for(kind: str, layout: Layout) -> Prior:
    """A prior of one kind whose precisions all differ."""
    match kind:
        case "isotropic":
            return lw.Isotropic(0.7)
        case "layerwise":
            return lw.Layerwise(tuple(0.5 + 0.7 * i for i in range(len(layout.layers))))
        case "diagonal":
            return lw.DiagonalPrior(torch.linspace(0.5, 2.0, layout.size, dtype=torch.float64))
        case "g-prior":
            return lw.GPrior(0.7).scaled_by(torch.linspace(0.5, 3.0, layout.size, dtype=torch.float64), layout)
    raise LookupError(kind)


PRIORS = ("isotropic", "layerwise", "diagonal", "g-prior")


@dataclass(frozen=True, eq=False)
class Linearised:
    """The linear model around a network's trained weights, dense, from the module itself.

    Args:
        case: The problem.
        network: Says only which weights are uncertain.
    """

    case: Problem
    network: Network

    @cached_property
    def theta(self) -> Tensor:
        """The uncertain weights."""
        return self._flat[self._index]

    def outputs(self, x: Tensor) -> Tensor:
        """Canonical outputs of the module in eval mode."""
        return self._at(self.theta, x)

    def jacobian(self, x: Tensor) -> Tensor:
        """``[n, *event, c, d]`` of canonical outputs in the uncertain weights."""
        return jacrev(self._at)(self.theta, x)

    @cached_property
    def ggn(self) -> Tensor:
        """``Jᵀ B J`` over the training data."""
        f, y = self._canonical
        j, b = self.jacobian(self.case.x).flatten(0, -3), self.case.likelihood.hessian(f, y).flatten(0, -3)
        return torch.einsum("nci,ncd,ndj->ij", j, b, j)

    @cached_property
    def log_likelihood(self) -> Tensor:
        """log p(y | f) of the training data, nats."""
        return -self.case.likelihood.nll(*self._canonical).sum()

    def log_marginal(self, precision: Tensor, prior: Tensor) -> float:
        """``log p(y | θ*) + log p(θ*) + d/2 log 2π - ½ log det Λ`` for Λ ``[d, d]`` and A ``[d]``."""
        log_prior = 0.5 * (torch.log(prior / (2 * math.pi)) - prior * self.theta.square()).sum()
        volume = 0.5 * len(prior) * math.log(2 * math.pi) - 0.5 * torch.logdet(precision)
        return float(self.log_likelihood + log_prior + volume)

    @cached_property
    def new(self) -> tuple[Tensor, Tensor]:
        """Outputs and Jacobian at the new inputs."""
        return self.outputs(self.case.new), self.jacobian(self.case.new)

    def joint_covariance(self, precision: Tensor) -> Tensor:
        """``J Λ⁻¹ Jᵀ`` over all outputs of all new inputs, ``[n, *event, c, n, *event, c]``."""
        j = self.new[1]
        flat = j.flatten(0, -2)
        return (flat @ torch.linalg.solve(precision, flat.mT)).reshape(j.shape[:-1] + j.shape[:-1])

    @cached_property
    def _canonical(self) -> tuple[Tensor, Tensor]:
        f = self.outputs(self.case.x)
        return f, self.case.likelihood.canonical_targets(f, self.case.y)

    @cached_property
    def _flat(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.case.model.parameters()])

    @cached_property
    def _index(self) -> Tensor:
        """Where the uncertain weights lie among all parameters of the module."""
        named = dict(self.case.model.named_parameters())
        sizes = [value.numel() for value in named.values()]
        places = dict(zip(named, torch.arange(sum(sizes)).split(sizes), strict=True))
        index = torch.cat([places[name] for name in self.network.names])
        return index if self.network.index is None else index[self.network.index]

    def _at(self, theta: Tensor, x: Tensor) -> Tensor:
        flat = self._flat.index_put((self._index,), theta)
        model = copy.deepcopy(self.case.model).eval()
        params, start = {}, 0
        for name, value in model.named_parameters():
            params[name] = flat[start : start + value.numel()].view(value.shape)
            start += value.numel()
        return self.case.likelihood.canonical(functional_call(model, params, (x,)))


def marginal_blocks(joint: Tensor) -> Tensor:
    """``[n, *event, c, c]``: the blocks of one position each of a joint covariance ``[n, *event, c, n, *event, c]``."""
    shape = joint.shape[: joint.ndim // 2]
    positions = math.prod(shape[:-1])
    flat = joint.reshape(positions, shape[-1], positions, shape[-1])
    blocks = torch.stack([flat[i, :, i, :] for i in range(positions)])
    return blocks.view(*shape, shape[-1])


def chained(matrix: Tensor, index: tuple[Tensor, ...]) -> Tensor:
    """The matrix that has the blocks of another on and beside its diagonal, and an inverse that ends there.

    The inverse is the sum of those of all pairs of neighbours less those of the blocks that two pairs share.
    """
    inverse = torch.zeros_like(matrix)
    for one, other in itertools.pairwise(index):
        both = torch.cat([one, other])
        inverse[both[:, None], both] += torch.linalg.inv(matrix[both[:, None], both])
    for shared in index[1:-1]:
        inverse[shared[:, None], shared] -= torch.linalg.inv(matrix[shared[:, None], shared])
    return torch.linalg.inv(inverse)


def portrait(model: nn.Module) -> dict[str, object]:
    """Everything a user could notice about a module, bit by bit."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {
        "tensors": [(name, id(x), x._version, x.requires_grad, x.tolist()) for name, x in tensors],
        "gradients": [None if x.grad is None else (id(x.grad), x.grad.tolist()) for x in model.parameters()],
        "modes": [part.training for part in model.modules()],
        "hooks": [[*part._forward_hooks, *part._forward_pre_hooks, *part._backward_hooks] for part in model.modules()],
        "attributes": [sorted(vars(part)) for part in model.modules()],
    }
