"""Derivatives with respect to λ by refits: which λ, both signs of it, and the check that the answer is linear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.data.inputs import Inputs
from lapwing.ground.errors import ConvergenceWarning, NumericalError, warn
from lapwing.methods.hessian_free.inner import Inner, Refitted
from lapwing.methods.hessian_free.refit import Refit
from lapwing.methods.hessian_free.regularisers import Regulariser

PILOTS = 2
"""Fits that tell the scale for all, where λ cannot be found on each fit by itself."""

CHECKED = 2
"""Fits that are repeated at half their λ."""

LINEAR = 0.1
"""Relative change of a response at half the λ beyond which there is a warning."""

MEANINGLESS = 0.9
"""The same beyond which there is an error: what does not answer to λ at all changes by the whole."""

BUDGET = 2**31
"""Bytes the vectors of all fits that are made together may take (2 GiB); the others wait for their turn."""

HELD = 24
"""Vectors of float64 held for a fit: those of conjugate gradients, of the gradients, and copies of the weights."""

ROUNDED = "model.double() and data in float64, a larger step= or scale= (rounding may hide what a fit changes)"
"""What to try first where a network of less precision than float64 does not answer to λ."""


@final
@dataclass(frozen=True)
class Linearity:
    """How much of a response is not linear in λ, and what the fits took.

    Args:
        change: Largest relative change ``|y(λ) − y(λ/2)| / |y(λ)|`` of a response y over the fits that were repeated at
            half their λ.
        checked: How many these were.
        scale: Smallest and largest λ.
        residual: About how far a fit was from its end, at most, relative to the length of its change of the weights.
        gradient: Largest length of the gradient of loss and prior at the trained weights, relative to that of ``λ ∇r``.
        fits: Fits in all, those that found λ and those that checked it included.
        gradients: Gradients over the data, one for each fit and step.
        products: Columns multiplied by the Hessian over all the data.
    """

    change: float
    checked: int
    scale: tuple[float, float]
    residual: float
    gradient: float
    fits: int
    gradients: int
    products: int

    @staticmethod
    def join(parts: Sequence[Linearity]) -> Linearity:
        """Those of several families of fits, one after the other: the last counts the fits of all."""
        return replace(
            parts[-1],
            change=max(part.change for part in parts),
            checked=sum(part.checked for part in parts),
            scale=(min(part.scale[0] for part in parts), max(part.scale[1] for part in parts)),
            residual=max(part.residual for part in parts),
            gradient=max(part.gradient for part in parts),
        )


@final
@dataclass(frozen=True, eq=False)
class Responses:
    """The refitted weights of a family of functionals, and what can be read off them.

    Args:
        refit: The objectives.
        plus: δ at λ.
        minus: δ at −λ; ``None`` for one-sided differences, taken from the trained weights.
        scales: λ of each, float64.
    """

    refit: Refit
    plus: Float[Tensor, "s d"]
    minus: Float[Tensor, "s d"] | None
    scales: Float[Tensor, " s"]

    def outputs(self, inputs: Inputs) -> Float[Tensor, "s n *event c"]:
        """``∂f / ∂λ`` at inputs: ``J P⁻¹ ∇r`` of each functional, float64."""
        return self._difference(lambda changes: self.refit.outputs(changes, inputs))

    def weights(self) -> Float[Tensor, "s d"]:
        """``∂θ / ∂λ = P⁻¹ ∇r`` of each functional, float64."""
        return self._difference(lambda changes: changes)

    def _difference(self, read: Callable[[Float[Tensor, "f d"]], Tensor]) -> Tensor:
        """``(y(λ) − y(−λ)) / 2λ``, or ``(y(λ) − y(0)) / λ`` where there is no twin."""
        ends = self.plus.new_zeros(1, self.plus.shape[1]) if self.minus is None else self.minus
        found = read(self.plus) - read(ends)
        span = self.scales if self.minus is None else 2 * self.scales
        return found / span.view(-1, *(1,) * (found.ndim - 1))


@final
@dataclass(frozen=True)
class Responder:
    """How responses are found.

    Args:
        refit: The objectives.
        inner: The inner solver.
        scale: λ of all fits; ``None`` for the rule.
        step: How far a fit moves the weights by the rule, in posterior standard deviations; ``None`` for the solver's.
        antithetic: Whether each fit has a twin at −λ.
        seed: Of random functionals.
        budget: Bytes the vectors of all fits that are made together may take.
    """

    refit: Refit
    inner: Inner
    scale: float | None
    step: float | None
    antithetic: bool
    seed: int
    budget: int = BUDGET

    def respond(self, regulariser: Regulariser, read: Callable[[Responses], Tensor]) -> tuple[Responses, Linearity]:
        """Fit the network again for every functional.

        The rule is ``λ = η / √(∇rᵀ P⁻¹ ∇r)``: the refit then moves the weights by η posterior standard deviations,
        ``δᵀ P δ = η²``, and no output by more than η of its own.

        Args:
            regulariser: The functionals.
            read: What of the responses is compared when λ is halved.

        Raises:
            NumericalError: If the Hessian is not positive definite, or a fit has run away.

        Warns:
            ConvergenceWarning: If the responses are not linear in λ, or a fit stayed far from its end.
        """
        reward = self.refit.reward(regulariser)
        scales, start = self._scaled(regulariser, reward)
        changes, residual = self._fitted(regulariser, scales, start)
        rewards = scales * reward.norm(dim=1)
        worst = rewards.argsort(descending=True)[:CHECKED]
        half = self._fitted(regulariser.take(worst), scales[worst] / 2, changes[:, worst] / 2).changes
        y = read(self._responses(scales[worst], changes[:, worst])).flatten(1)  # at λ, and at half of it
        z = read(self._responses(scales[worst] / 2, half)).flatten(1)
        work = self.refit.work
        linearity = Linearity(
            change=float(((y - z).norm(dim=1) / y.norm(dim=1).clamp(min=1e-300)).max()),
            checked=len(worst),
            scale=(float(scales.min()), float(scales.max())),
            residual=float(residual.max()),
            gradient=float(self.refit.gradient.norm() / rewards.min().clamp(min=1e-300)),
            fits=work.fits,
            gradients=work.gradients,
            products=work.products,
        )
        check_linear(linearity.change, self.refit.network.like.dtype)
        if self.inner.newton is not None and self.refit.centred and linearity.residual > LINEAR:
            warn(
                f"a refit stayed {100 * linearity.residual:.2g} % of its change from its end: its gradients do not "
                "bear out the Hessian. Try a smaller step= or scale=, or model.double()",
                ConvergenceWarning,
            )
        return self._responses(scales, changes), linearity

    def _responses(self, scales: Float[Tensor, " s"], changes: Float[Tensor, "ends s d"]) -> Responses:
        return Responses(self.refit, changes[0], changes[1] if self.antithetic else None, scales)

    def _fitted(
        self, regulariser: Regulariser, scales: Float[Tensor, " s"], start: Float[Tensor, "ends s d"]
    ) -> Refitted:
        """δ at every end of each functional, ``[ends, s, d]``; all ends of one go through the same mini-batches."""
        signs = start.new_tensor([1.0, -1.0][: len(start)])
        ends = (len(start), -1)
        changes = list[Tensor]()
        residuals = list[Tensor]()
        for rows in self._groups(scales):
            part = regulariser.take(rows.repeat(len(start))).times(torch.outer(signs, scales[rows]).flatten())
            self.refit.work.add(fits=len(part))
            fitted = self.inner.solve(self.refit, part, start[:, rows].flatten(0, 1))
            changes.append(fitted.changes.unflatten(0, ends))
            residuals.append(fitted.residual.unflatten(0, ends))
        return Refitted(torch.cat(changes, 1), torch.cat(residuals, 1))

    def _groups(self, scales: Float[Tensor, " s"]) -> tuple[Tensor, ...]:
        """Numbers of the functionals whose fits ``budget`` has room for at a time."""
        each = (1 + self.antithetic) * HELD * 8 * self.refit.network.size
        return torch.arange(len(scales), device=scales.device).split(max(1, self.budget // each))

    def _scaled(
        self, regulariser: Regulariser, reward: Float[Tensor, "s d"]
    ) -> tuple[Float[Tensor, " s"], Float[Tensor, "ends s d"]]:
        """λ of each functional, and where its fits start."""
        refit = self.refit
        start = reward.new_zeros(1 + self.antithetic, *reward.shape)
        if self.scale is not None:
            return reward.new_full((len(reward),), self.scale), start
        eta = self.step if self.step is not None else self.inner.step(refit.network.like.dtype)
        newton = self.inner.newton
        if newton is not None:
            groups = self._groups(reward[:, 0])
            refit.work.add(fits=len(reward))
            directions = torch.cat([newton.directions(refit, reward[rows]) for rows in groups])
            scales = eta / _energies(reward, directions).sqrt()
            ahead = scales[:, None] * directions
            return scales, torch.stack([ahead, -ahead])[: len(start)]
        before = (reward.square() / refit.prior).sum(1)
        which = before.argsort(descending=True)[:PILOTS]
        pilots = eta / before[which].sqrt()
        zeros = reward.new_zeros(2, *reward[which].shape)
        ends = replace(self, antithetic=True)._fitted(regulariser.take(which), pilots, zeros).changes
        q = _energies(reward[which], (ends[0] - ends[1]) / (2 * pilots[:, None]))
        return reward.new_full((len(reward),), float(eta / q.max().sqrt())), start


def check_linear(change: float, dtype: torch.dtype = torch.float64) -> None:
    """Say where responses are not linear.

    Args:
        change: Relative change of a response when λ is halved.
        dtype: That of the network: the less precise it is, the larger must changes of the weights be.

    Raises:
        NumericalError: If it is nearly the whole, or no number.

    Warns:
        ConvergenceWarning: If it is more than a tenth.
    """
    if not change <= MEANINGLESS:
        size = "a smaller step= or scale=" if dtype == torch.float64 else ROUNDED
        raise NumericalError(
            "a response to λ that is near linear",
            f"one that changes by {100 * change:.3g} % when λ is halved, in {str(dtype).removeprefix('torch.')}",
            f"{size}, more steps of the inner solver, or training to convergence with this prior",
        )
    if change > LINEAR:
        warn(
            f"the responses change by {100 * change:.2g} % when λ is halved. Try a smaller step= or scale=, or an "
            "inner solver that converges further",
            ConvergenceWarning,
        )


def _energies(reward: Float[Tensor, "s d"], directions: Float[Tensor, "s d"]) -> Float[Tensor, " s"]:
    """``∇rᵀ P⁻¹ ∇r``: the variance of r."""
    q = (reward * directions).sum(1)
    if not bool((q > 0).all()):
        raise NumericalError(
            "a positive variance of everything the refits are rewarded for",
            f"{float(q.min()):.3g}",
            "training to convergence with this prior, or a larger prior precision: the Hessian is indefinite",
        )
    return q
