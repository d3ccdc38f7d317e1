"""Derivatives with respect to λ by refits: which λ, both signs of it, and the check that the answer is linear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.errors import ConvergenceWarning, NumericalError, warn
from lapwing.ground.types import Inputs
from lapwing.methods.hessian_free.inner import Inner, Linearity, Refitted
from lapwing.methods.hessian_free.refit import Fits, Refit
from lapwing.methods.hessian_free.regularisers import Regulariser

PILOTS = 2
"""Fits that tell the scale for all, where λ cannot be found on each fit by itself."""

CHECKED = 2
"""Fits that are repeated at half their λ."""

LINEAR = 0.1
"""Relative change of a response at half the λ beyond which there is a warning."""

MEANINGLESS = 0.9
"""The same beyond which there is an error: what does not answer to λ at all changes by the whole."""

DISTANT = 1e-2
"""How far a fit may be from its end, relative to its change of the weights, before it is made smaller."""

SHRINK, SHRINKS = 8.0, 5
"""By what λ is divided then, and how often."""

BUDGET = 2**31
"""Bytes the vectors of all fits that are made together may take (2 GiB); the others wait for their turn."""

HELD = 24
"""Vectors of float64 held for a fit: those of conjugate gradients, of the gradients, and copies of the weights."""

ROUNDED = "model.double() and data in float64, a larger step= or scale= (rounding may hide what a fit changes)"
"""What to try first where a network of less precision than float64 does not answer to λ."""


@final
@dataclass(frozen=True, eq=False)
class Responses:
    """The refitted weights of a family of functionals, and what can be read off them.

    Args:
        refit: The objectives.
        regulariser: The functionals.
        plus: δ at λ.
        minus: δ at −λ; ``None`` for one-sided differences, taken from the trained weights.
        scales: λ of each, float64.
        linearity: The check.
    """

    refit: Refit
    regulariser: Regulariser
    plus: Float[Tensor, "s d"]
    minus: Float[Tensor, "s d"] | None
    scales: Float[Tensor, " s"]
    linearity: Linearity

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


Read: TypeAlias = Callable[[Responses], Tensor]
"""What of the responses is compared when λ is halved."""


@final
@dataclass(frozen=True)
class Perturbation:
    """How responses are found.

    Args:
        inner: The inner solver.
        scale: λ of all fits; ``None`` for the rule.
        step: How far a fit moves the weights by the rule, in posterior standard deviations; ``None`` for the solver's.
        antithetic: Whether each fit has a twin at −λ.
    """

    inner: Inner
    scale: float | None
    step: float | None
    antithetic: bool

    @property
    def ends(self) -> int:
        """Fits of a functional: at λ and, where there are twins, at −λ."""
        return 2 if self.antithetic else 1

    def respond(self, refit: Refit, regulariser: Regulariser, read: Read) -> Responses:
        """Fit the network again for every functional.

        The rule is ``λ = η / √(∇rᵀ P⁻¹ ∇r)``: the refit then moves the weights by η posterior standard deviations,
        ``δᵀ P δ = η²``, and no output by more than η of its own.

        Args:
            refit: The objectives.
            regulariser: The functionals.
            read: What of the responses is compared when λ is halved.

        Raises:
            NumericalError: If the Hessian is not positive definite, or a fit has run away.

        Warns:
            ConvergenceWarning: If the responses are not linear in λ, or a fit stayed far from its end.
        """
        members = torch.arange(regulariser.members, device=refit.trained.device)
        fits = Fits(regulariser, members, torch.ones(len(members), dtype=torch.float64, device=members.device))
        reward = refit.reward(fits)
        fits, start, spent = self._scaled(refit, fits, reward)
        found = self._fitted(refit, fits, start)
        runs = [*spent, found]
        if self.scale is None and self.inner.measures:
            fits, found, more = self._shrunk(refit, fits, found)
            runs += more
        rewards = (fits.scales[:, None] * reward).norm(dim=1)
        worst = rewards.argsort(descending=True)[:CHECKED]
        half = replace(fits.take(worst), scales=fits.scales[worst] / 2)
        again = self._fitted(refit, half, found.changes[:, worst] / 2)
        runs.append(again)
        linearity = Linearity(
            0.0,
            len(worst),
            (float(fits.scales.min()), float(fits.scales.max())),
            float(found.residual.max()),
            float(refit.gradient.norm() / rewards.min().clamp(min=1e-300)),
            sum(run.residual.numel() for run in runs),
            sum(run.gradients for run in runs),
            sum(run.products for run in runs),
        )

        def responses(fits: Fits, changes: Float[Tensor, "ends s d"]) -> Responses:
            minus = changes[1] if self.antithetic else None
            return Responses(refit, regulariser, changes[0], minus, fits.scales, linearity)

        y = read(responses(fits.take(worst), found.changes[:, worst])).flatten(1)
        z = read(responses(half, again.changes)).flatten(1)
        linearity = replace(linearity, change=float(((y - z).norm(dim=1) / y.norm(dim=1).clamp(min=1e-300)).max()))
        check_linear(linearity.change, refit.network.like.dtype)
        if self.inner.measures and refit.centred and linearity.residual > LINEAR:
            warn(
                f"a refit stayed {100 * linearity.residual:.2g} % of its change from its end: its gradients do not "
                "bear out the Hessian. Try a smaller step= or scale=, or model.double()",
                ConvergenceWarning,
            )
        return responses(fits, found.changes)

    def _fitted(self, refit: Refit, fits: Fits, start: Float[Tensor, "ends s d"]) -> Refitted:
        """δ at every end of each functional; all ends of one go through the same mini-batches."""
        signs = start.new_tensor([1.0, -1.0][: len(start)])
        runs = list[Refitted]()
        for rows in self._groups(refit, fits):
            part = fits.take(rows)
            both = Fits(part.regulariser, part.members.repeat(len(start)), torch.outer(signs, part.scales).flatten())
            runs.append(self.inner.solve(refit, both, start[:, rows].flatten(0, 1)))
        return Refitted.join(runs, len(start))

    def _groups(self, refit: Refit, fits: Fits) -> tuple[Tensor, ...]:
        """Numbers of the functionals whose fits ``BUDGET`` has room for at a time."""
        each = self.ends * HELD * 8 * refit.network.size
        return torch.arange(len(fits), device=fits.members.device).split(max(1, BUDGET // each))

    def _shrunk(self, refit: Refit, fits: Fits, found: Refitted) -> tuple[Fits, Refitted, list[Refitted]]:
        """The fits again at smaller λ, where they did not come near their end: the loss is too far from quadratic."""
        changes, scales, left = found.changes.clone(), fits.scales.clone(), found.residual.amax(0)
        runs = list[Refitted]()
        for _ in range(SHRINKS):
            far = (left > DISTANT).nonzero()[:, 0]
            if not len(far):
                break
            tried = replace(fits.take(far), scales=scales[far] / SHRINK)
            again = self._fitted(refit, tried, changes[:, far] / SHRINK)
            runs.append(again)
            residual = again.residual.amax(0)
            nearer = residual < left[far]
            kept = far[nearer]
            if not len(kept):
                break
            scales[kept], left[kept] = tried.scales[nearer], residual[nearer]
            changes[:, kept] = again.changes[:, nearer]
        return replace(fits, scales=scales), replace(found, changes=changes, residual=left), runs

    def _scaled(
        self, refit: Refit, fits: Fits, reward: Float[Tensor, "s d"]
    ) -> tuple[Fits, Float[Tensor, "ends s d"], list[Refitted]]:
        """The fits at their λ, where to start from, and what it took to know."""
        start = reward.new_zeros(self.ends, *reward.shape)
        if self.scale is not None:
            return replace(fits, scales=torch.full_like(fits.scales, self.scale)), start, []
        eta = self.step if self.step is not None else self.inner.step(refit.network.like.dtype)
        direct = [self.inner.directions(refit, fits.take(rows)) for rows in self._groups(refit, fits)]
        known = [each for each in direct if each is not None]
        if known:
            found = Refitted.join(known, 1)
            scales = eta / _energies(reward, found.changes[0]).sqrt()
            ahead = scales[:, None] * found.changes
            return replace(fits, scales=scales), torch.cat([ahead, -ahead])[: self.ends], [found]
        before = (reward.square() / refit.prior).sum(1)
        which = before.argsort(descending=True)[:PILOTS]
        pilot = replace(fits.take(which), scales=eta / before[which].sqrt())
        run = replace(self, antithetic=True)._fitted(refit, pilot, reward.new_zeros(2, *reward[which].shape))
        q = _energies(reward[which], (run.changes[0] - run.changes[1]) / (2 * pilot.scales[:, None]))
        return replace(fits, scales=torch.full_like(fits.scales, float(eta / q.max().sqrt()))), start, [run]


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
