"""Small networks at a minimum of their loss and prior, with dense Hessians and Jacobians."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacrev

import lapwing as lw
from lapwing.likelihoods import Likelihood
from tests.posterior_cases import labels, normal, seeded


@dataclass(frozen=True, eq=False)
class Setting:
    """A network, what it was fitted to, and points to evaluate.

    Args:
        model: The network, in training mode as users leave it.
        likelihood: p(y | f).
        alpha: Prior precision.
        x: Training inputs.
        y: Targets.
        points: Evaluation points.
    """

    model: nn.Module
    likelihood: Likelihood
    alpha: float
    x: Tensor
    y: Tensor
    points: Tensor

    @property
    def prior(self) -> lw.Isotropic:
        return lw.Isotropic(self.alpha)

    def fit(self, points: Tensor | None = None, **options: object) -> lw.hessian_free.HessianFreePosterior:
        recipe = lw.HessianFree(self.likelihood, prior=self.prior, **options)
        return recipe.fit(self.model, (self.x, self.y), self.points if points is None else points)

    @cached_property
    def theta(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        return functional_call(self.model, unflat(self.model, theta), (x,))

    def loss(self, theta: Tensor) -> Tensor:
        nll = self.likelihood.nll(self.outputs(theta, self.x), self.y).sum()
        return nll + 0.5 * self.alpha * theta.square().sum()

    @cached_property
    def hessian(self) -> Tensor:
        return hessian(self.loss)(self.theta)

    def jacobian(self, x: Tensor) -> Tensor:
        """``[n c, d]``."""
        return jacrev(self.outputs)(self.theta, x).flatten(0, 1)

    def covariance(self, x: Tensor | None = None, z: Tensor | None = None) -> Tensor:
        """``J P⁻¹ Jᵀ``, ``[n c, m c]``."""
        x = self.points if x is None else x
        right = self.jacobian(x if z is None else z)
        return self.jacobian(x) @ torch.linalg.solve(self.hessian, right.mT)

    def blocks(self, x: Tensor | None = None) -> Tensor:
        """Its c × c blocks on the diagonal."""
        x = self.points if x is None else x
        c = self.outputs(self.theta, x[:1]).shape[1]
        return torch.stack([self.covariance(x[i : i + 1]) for i in range(len(x))]).view(len(x), c, c)


def unflat(model: nn.Module, theta: Tensor) -> dict[str, Tensor]:
    params, start = {}, 0
    for name, value in model.named_parameters():
        params[name] = theta[start : start + value.numel()].view(value.shape)
        start += value.numel()
    return params


def converged(setting: Setting, steps: int = 200) -> Setting:
    """The same with its network at a minimum, to rounding, by damped Newton steps; a new module every time."""
    theta = setting.theta
    loss, gradient, curvature = setting.loss, grad(setting.loss), hessian(setting.loss)
    damping = 1.0
    for _ in range(steps):
        g, p = gradient(theta), curvature(theta)
        if float(g.norm()) < 1e-11:
            break
        lowest = float(torch.linalg.eigvalsh(p)[0])
        shift = 0.0 if lowest > 0 and damping < 1e-6 else damping + max(0.0, -2 * lowest)
        tried = theta - torch.linalg.solve(p + shift * torch.eye(len(theta), dtype=theta.dtype), g)
        better = bool(loss(tried) <= loss(theta) + 1e-13)
        theta, damping = (tried, damping / 10) if better else (theta, damping * 10)
    nn.utils.vector_to_parameters(theta, setting.model.parameters())
    return Setting(*(getattr(setting, name) for name in ("model", "likelihood", "alpha", "x", "y", "points")))


def descended(setting: Setting, steps: int) -> None:
    """Steps of L-BFGS, which are cheaper than Newton's; in place."""
    theta = setting.theta.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([theta], max_iter=steps, history_size=30, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = setting.loss(theta)
        loss.backward()
        return loss

    optimiser.step(closure)
    nn.utils.vector_to_parameters(theta.detach(), setting.model.parameters())


def tanh(inputs: int, hidden: int, outputs: int, seed: int = 0) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs)), seed)


def curve(
    hidden: int = 8, examples: int = 24, alpha: float = 0.5, precision: float = 50.0, descent: int = 0
) -> Setting:
    """A sine with noise, points within and beyond it."""
    x = torch.linspace(-1.5, 1.2, examples, dtype=torch.float64)[:, None]
    y = -torch.sin(3 * x - 0.3) + 0.1 * normal(examples, 1)
    points = torch.linspace(-2.0, 1.7, 11, dtype=torch.float64)[:, None]
    model = tanh(1, hidden, 1)
    start = (model, lw.Gaussian(precision), alpha, x, y, points)
    if descent:
        descended(Setting(*start), descent)
    return converged(Setting(*start))


def two_outputs() -> Setting:
    """Three inputs, two outputs with noise of their own."""
    x, y = normal(12, 3), normal(12, 2, seed=1)
    return converged(Setting(tanh(3, 4, 2), lw.Gaussian((2.0, 5.0)), 1.5, x, y, normal(5, 3, seed=2)))


def classes() -> Setting:
    """Three classes."""
    x, y = normal(14, 3), labels(14, classes=3)
    return converged(Setting(tanh(3, 4, 3), lw.Categorical(), 0.8, x, y, normal(4, 3, seed=2)))


SETTINGS: dict[str, Callable[[], Setting]] = {"curve": curve, "two-outputs": two_outputs, "classes": classes}


@cache
def shared(name: str) -> Setting:
    """One of ``SETTINGS``, made once: nothing may write to it."""
    return SETTINGS[name]()
