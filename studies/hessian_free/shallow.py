"""One hidden layer of tanh units, many of them trained side by side to the exact minimum, in float64.

The networks of one data set, one for each seed and each variance of the noise, share nothing but the steps: the rows of
one matrix are their weights. Adam (rate 0.005) is followed by Newton's method with the eigenvalues of the Hessian made
positive, until the gradient is at rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.networks import jacobian, perceptron
from benchmarks.training import kept_tensors
from studies.hessian_free.curves import CURVES, Data

WIDTH = 50
PRIOR_VARIANCE = 3.0
NOISES = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
"""Variances of the observation noise to choose from."""

RATE = 5e-3
STEPS = 1000
NEWTON = 1000
TOLERANCE = 1e-8
"""Largest entry of the gradient that is left, in nats a unit of weight."""

RECIPE = (PRIOR_VARIANCE, NOISES, RATE, NEWTON, TOLERANCE)
"""What trained weights depend on beside the data and the steps."""


@dataclass(frozen=True)
class Fitted:
    """A trained network.

    Args:
        model: Two linear layers with tanh between them, float64.
        data: What it was trained on and is scored on.
        noise: Variance of the noise of least NLL on the validation data.
        smallest: Smallest eigenvalue of the exact Hessian, prior included; positive at a minimum.
        seed: Of the data and the initial weights.
    """

    model: nn.Sequential
    data: Data
    noise: float
    smallest: float
    seed: int

    @property
    def weights(self) -> Float[Tensor, " d"]:
        """The weights, flat."""
        return flat(self.model)

    @property
    def likelihood(self) -> lw.Gaussian:
        """p(y | f)."""
        return lw.Gaussian(1 / self.noise)

    @property
    def prior(self) -> lw.Isotropic:
        """p(θ)."""
        return lw.Isotropic(1 / PRIOR_VARIANCE)

    def jacobian(self, x: Float[Tensor, "n 1"]) -> Float[Tensor, "n d"]:
        """The derivative of each output in the weights."""
        return jacobian(self.model, x)


@dataclass(frozen=True)
class Shallow:
    """Networks side by side, and what they are trained on.

    Args:
        x: Inputs ``[b, n]``.
        y: Targets ``[b, n]``.
        precision: Of the noise, ``[b]``.
        width: Hidden units.
    """

    x: Float[Tensor, "b n"]
    y: Float[Tensor, "b n"]
    precision: Float[Tensor, " b"]
    width: int = WIDTH

    def outputs(self, theta: Float[Tensor, "b d"], x: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        """f(x) of each network at its inputs."""
        _, _, v, c = self._parts(theta)
        return (v[..., None] * self._units(theta, x)[0]).sum(1) + c

    def loss(self, theta: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        """Half the squares of the errors and of the weights in units of their deviations: nats, but for a constant."""
        error = (self.outputs(theta, self.x) - self.y).square().sum(1)
        return 0.5 * (self.precision * error + theta.square().sum(1) / PRIOR_VARIANCE)

    def jacobian(self, theta: Float[Tensor, "b d"], x: Float[Tensor, "b n"]) -> Float[Tensor, "b d n"]:
        """The derivative of each output in the weights."""
        h, first, _ = self._units(theta, x)
        slope = self._parts(theta)[2][..., None] * first
        return torch.cat([slope * x[:, None], slope, h, torch.ones_like(x[:, None])], dim=1)

    def derivatives(self, theta: Float[Tensor, "b d"]) -> tuple[Float[Tensor, "b d"], Float[Tensor, "b d d"]]:
        """Gradient and Hessian of the loss, written out: through the residuals only weights of one unit are coupled."""
        x, width, v = self.x[:, None], self.width, self._parts(theta)[2][..., None]
        _, first, second = self._units(theta, self.x)
        jacobian = self.jacobian(theta, self.x)
        residual = (self.precision[:, None] * (self.outputs(theta, self.x) - self.y))[:, None]
        gradient = (jacobian * residual).sum(2) + theta / PRIOR_VARIANCE
        hessian = self.precision[:, None, None] * (jacobian @ jacobian.mT)
        bent, tilted = v * second * residual, first * residual
        pairs = {(0, 0): bent * x.square(), (0, 1): bent * x, (1, 1): bent, (0, 2): tilted * x, (1, 2): tilted}
        for (one, other), terms in pairs.items():
            for i, j in {(one, other), (other, one)}:
                hessian[:, i * width : (i + 1) * width, j * width : (j + 1) * width] += torch.diag_embed(terms.sum(2))
        return gradient, hessian + torch.eye(hessian.shape[1], dtype=hessian.dtype) / PRIOR_VARIANCE

    def adam(self, theta: Float[Tensor, "b d"], steps: int = STEPS) -> Float[Tensor, "b d"]:
        """Weights after so many steps of Adam with all data in one batch."""
        weights = theta.clone().requires_grad_()
        optimiser = torch.optim.Adam([weights], RATE)
        for _ in range(steps):
            optimiser.zero_grad()
            self.loss(weights).sum().backward()
            optimiser.step()
        return weights.detach()

    def newton(self, theta: Float[Tensor, "b d"], steps: int = NEWTON) -> Float[Tensor, "b d"]:
        """The minimum near some weights, by ``|H|⁻¹`` and halved steps until the loss falls."""
        theta, active = theta.clone(), torch.arange(len(theta))
        for _ in range(steps):
            nets = self.take(active)
            gradient, hessian = nets.derivatives(theta[active])
            moving = gradient.abs().amax(1) > TOLERANCE
            if not bool(moving.any()):
                break
            active, gradient, nets = active[moving], gradient[moving], nets.take(moving)
            values, vectors = torch.linalg.eigh(hessian[moving])
            step = (vectors @ ((vectors.mT @ gradient[..., None]) / values.abs().clamp_min(1e-6)[..., None]))[..., 0]
            theta[active] = nets.descended(theta[active], step)
        return theta

    def take(self, which: Tensor) -> Shallow:
        """Some of the networks."""
        return Shallow(self.x[which], self.y[which], self.precision[which], self.width)

    def descended(self, theta: Float[Tensor, "b d"], step: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        """Weights less a step, halved for each network until its loss is no more than it was."""
        before, scale = self.loss(theta), torch.ones_like(theta[:, 0])
        for _ in range(30):
            worse = self.loss(theta - scale[:, None] * step) > before + 1e-12 * before.abs()
            if not bool(worse.any()):
                break
            scale = torch.where(worse, scale / 2, scale)
        return theta - scale[:, None] * step

    def _units(self, theta: Float[Tensor, "b d"], x: Float[Tensor, "b n"]) -> tuple[Tensor, Tensor, Tensor]:
        """The hidden units ``[b, width, n]``, and their first and second derivatives in what enters them."""
        w, b, _, _ = self._parts(theta)
        h = torch.tanh(w[..., None] * x[:, None] + b[..., None])
        return h, 1 - h.square(), -2 * h * (1 - h.square())

    def _parts(self, theta: Float[Tensor, "b d"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        w, b, v, c = theta.split([self.width, self.width, self.width, 1], dim=1)
        return w, b, v, c


def fitted(name: str, setting: Setting, seeds: Sequence[int] | None = None, *, steps: int = STEPS) -> list[Fitted]:
    """The networks of a data set, one a seed, each with the variance of the noise that the validation data prefer.

    Every seed is trained by Adam once for each variance; the one of least NLL under ``N(f(x), variance)`` on the
    validation data goes on to the minimum.

    Args:
        name: Of the data set.
        setting: How much is run.
        seeds: Which; all where ``None``.
        steps: Of Adam; a quarter of them in a hurry.

    Cost:
        A minute for 20 seeds of 32 points.
    """
    chosen, width = setting.repeats if seeds is None else seeds, 5 if setting.quick else WIDTH
    data = [CURVES[name].draw(seed, quick=setting.quick) for seed in chosen]
    noises, x, y = torch.tensor(NOISES, dtype=torch.float64), columns(data, "train", 0), columns(data, "train", 1)
    steps = steps // (4 if setting.quick else 1)
    held = [columns(data, "validation", at) for at in (0, 1)]
    file, key = f"{name}-{width}-{chosen[0]}-{chosen[-1]}", (*RECIPE, steps, tuple(chosen), x, y, *held)
    found = kept_tensors(lambda: trained(data, chosen, width, steps), setting.kept, file, *key)
    theta, best = found["theta"], found["best"]
    minimum = Shallow(x, y, 1 / noises[best], width)
    smallest = torch.linalg.eigvalsh(minimum.derivatives(theta)[1])[:, 0].tolist()
    models = [network(seed, width) for seed in chosen]
    for model, row in zip(models, theta, strict=True):
        nn.utils.vector_to_parameters(row, model.parameters())
    values = zip(models, data, noises[best].tolist(), smallest, chosen, strict=True)
    return [Fitted(*value) for value in values]


def trained(data: Sequence[Data], seeds: Sequence[int], width: int, steps: int) -> dict[str, Tensor]:
    """Weights ``theta`` at the minimum, a row a seed, and which of ``NOISES`` each was trained with, ``best``.

    Args:
        data: Of each seed.
        seeds: Of the initial weights.
        width: Hidden units.
        steps: Of Adam.
    """
    noises, each = torch.tensor(NOISES, dtype=torch.float64), len(NOISES)
    start = torch.stack([flat(network(seed, width)) for seed in seeds]).repeat_interleave(each, 0)
    x, y = (columns(data, "train", at).repeat_interleave(each, 0) for at in (0, 1))
    held_x, held_y = (columns(data, "validation", at).repeat_interleave(each, 0) for at in (0, 1))
    grid = Shallow(x, y, (1 / noises).repeat(len(data)), width)
    theta = grid.adam(start, steps)
    error = (grid.outputs(theta, held_x) - held_y).square().mean(1).view(-1, each)
    best = (error / noises + noises.log()).argmin(1)
    rows = torch.arange(len(data)) * each + best
    return {"theta": grid.take(rows).newton(theta[rows]), "best": best}


def network(seed: int, width: int = WIDTH) -> nn.Sequential:
    """PyTorch's own initial weights.

    Example:
        >>> flat(network(0)).shape
        torch.Size([151])
    """
    return perceptron(1, width, 1, seed=seed).double()


def flat(model: nn.Module) -> Float[Tensor, " d"]:
    """The weights of a network in the order of its parameters."""
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def columns(data: Sequence[Data], part: str, at: int) -> Float[Tensor, "b n"]:
    """Inputs (0) or targets (1) of one part of the data of all seeds."""
    return torch.stack([getattr(each, part)[at][:, 0] for each in data])
