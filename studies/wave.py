"""A sine seen left and right of a gap, a network for it, and the evidence of that written out in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.networks import perceptron
from lapwing.ground import probes

LEFT, GAP, RIGHT = (-1.0, -0.2), (-0.2, 0.4), (0.4, 1.0)
POINTS, NOISE = 160, 0.1
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Data:
    """A draw of the data: to train on, to score on inside the gap, and beside the training data."""

    train: Pair
    gap: Pair
    sides: Pair

    @classmethod
    def draw(cls, seed: int) -> Data:
        """The draw of a seed."""
        generator = torch.Generator().manual_seed(seed)
        like = torch.zeros((), dtype=torch.float64)

        def part(n: int, low: float, high: float) -> Pair:
            x = low + (high - low) * torch.rand([n, 1], generator=generator, dtype=torch.float64)
            return x, torch.sin(5 * x + 1) + NOISE * probes.gaussian([n, 1], like=like, generator=generator)

        def sides(n: int) -> Pair:
            (a, b), (c, d) = part(n // 2, *LEFT), part(n // 2, *RIGHT)
            return torch.cat([a, c]), torch.cat([b, d])

        return cls(sides(POINTS), part(200, *GAP), sides(200))


def network(seed: int) -> nn.Sequential:
    """Two hidden layers of 32 tanh units in float64, PyTorch's own initial weights."""
    return perceptron(1, 32, 32, 1, seed=seed).double()


def loader(pair: Pair, batch: int, seed: int) -> DataLoader[Any]:
    """Shuffled batches, the same for every way."""
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(*pair), batch_size=batch, shuffle=True, generator=generator)


def optimum(model: nn.Module, pair: Pair) -> tuple[float, float, float]:
    """α and ρ of largest evidence at the weights, and that evidence, on a dense grid in float64.

    The Jacobian comes row by row from automatic differentiation and the evidence from the eigenvalues λ of JJᵀ:

        -ρ/2 |y - f|² + n/2 log(ρ/2π) - α/2 |θ|² - ½ Σ log(1 + ρλ/α)
    """
    x, y = pair
    weights = list(model.parameters())
    gradients = [torch.autograd.grad(output, weights, retain_graph=True) for output in model(x)]
    jacobian = torch.stack([torch.cat([part.flatten() for part in row]) for row in gradients])
    spectrum = torch.linalg.eigvalsh(jacobian @ jacobian.mT).clamp_min(0)
    error = float((model(x) - y).detach().square().sum())
    norm = float(sum(value.detach().square().sum() for value in weights))
    grid = torch.meshgrid(torch.arange(-3, 3, 0.01).double(), torch.arange(-1, 4, 0.01).double(), indexing="ij")
    alpha, rho = (10**axis for axis in grid)
    value = 0.5 * len(y) * torch.log(rho / (2 * torch.pi)) - 0.5 * rho * error - 0.5 * alpha * norm
    for eigenvalue in spectrum[spectrum > 1e-9 * spectrum.max()]:
        value -= 0.5 * torch.log1p(rho * eigenvalue / alpha)
    best = int(value.argmax())
    return float(alpha.flatten()[best]), float(rho.flatten()[best]), float(value.flatten()[best])
