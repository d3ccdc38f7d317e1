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
from lapwing.methods.hessian_free.inner import Inner, Refitted
from lapwing.methods.hessian_free.linearity import Linearity
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

Reading: TypeAlias = Callable[[Float[Tensor, "f d"]], Float[Tensor, "f ..."]]
"""What is read off the refitted weights."""


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

    def _difference(self, read: Reading) -> Tensor:
        return difference(read, self.plus, self.minus, self.scales)


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

    def respond(self, refit: Refit, regulariser: Regulariser, read: Callable[[Responses], Tensor]) -> Responses:
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
        scales, start, spent = self._scales(refit, fits, reward)
        fits = replace(fits, scales=scales)
        found = self._pairs(refit, fits, start)
        if self.scale is None and self.inner.measures:
            fits, found = self._shrunk(refit, fits, found)
            scales = fits.scales
        worst = (scales[:, None] * reward).norm(dim=1).argsort(descending=True)[:CHECKED]
        half = replace(fits.take(worst), scales=scales[worst] / 2)
        again = self._pairs(refit, half, tuple(part[worst] / 2 for part in found[0]))
        runs = [*spent, *found[1], *again[1]]
        linearity = Linearity(
            0.0,
            len(worst),
            (float(scales.min()), float(scales.max())),
            float(found[1][0].residual.max()),
            float(refit.gradient.norm() / (scales[:, None] * reward).norm(dim=1).min().clamp(min=1e-300)),
            sum(len(run.changes) for run in runs),
            sum(run.gradients for run in runs),
            sum(run.products for run in runs),
        )
        whole = Responses(refit, regulariser, *_two(found[0]), scales, linearity)
        part = replace(whole, plus=whole.plus[worst], minus=_some(whole.minus, worst), scales=scales[worst])
        y, z = (
            read(each).flatten(1)
            for each in (part, Responses(refit, regulariser, *_two(again[0]), half.scales, linearity))
        )
        change = float(((y - z).norm(dim=1) / y.norm(dim=1).clamp(min=1e-300)).max())
        self.check(change, refit.network.like.dtype)
        if self.inner.measures and refit.centred and linearity.residual > LINEAR:
            warn(
                f"a refit stayed {100 * linearity.residual:.2g} % of its change from its end: its gradients do not "
                "bear out the Hessian. Try a smaller step= or scale=, or model.double()",
                ConvergenceWarning,
            )
        return replace(whole, linearity=replace(linearity, change=change))

    def _pairs(self, refit: Refit, fits: Fits, start: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], list[Refitted]]:
        """δ at λ and, where there are twins, at −λ; both halves go through the same mini-batches."""
        runs = list[Refitted]()
        for rows in self._groups(refit, fits):
            part = fits.take(rows)
            if self.antithetic:
                part = Fits(part.regulariser, part.members.repeat(2), torch.cat([part.scales, -part.scales]))
            runs.append(self.inner.solve(refit, part, torch.cat([each[rows] for each in start])))
        run = Refitted.join(runs, len(start))
        return tuple(run.changes.chunk(len(start))), [run]

    def _groups(self, refit: Refit, fits: Fits) -> tuple[Tensor, ...]:
        """Numbers of the fits that ``BUDGET`` has room for at a time."""
        each = (2 if self.antithetic else 1) * HELD * 8 * refit.network.size
        return torch.arange(len(fits), device=fits.members.device).split(max(1, BUDGET // each))

    def _shrunk(
        self, refit: Refit, fits: Fits, found: tuple[tuple[Tensor, ...], list[Refitted]]
    ) -> tuple[Fits, tuple[tuple[Tensor, ...], list[Refitted]]]:
        """The fits again at smaller λ, where they did not come near their end: the loss is too far from quadratic."""
        changes, runs = tuple(part.clone() for part in found[0]), list(found[1])
        left = runs[0].residual.view(len(changes), -1).amax(0)
        scales = fits.scales.clone()
        for _ in range(SHRINKS):
            far = (left > DISTANT).nonzero()[:, 0]
            if not len(far):
                break
            tried = replace(fits.take(far), scales=scales[far] / SHRINK)
            again, more = self._pairs(refit, tried, tuple(part[far] / SHRINK for part in changes))
            runs += more
            residual = more[0].residual.view(len(changes), -1).amax(0)
            nearer = residual < left[far]
            kept = far[nearer]
            if not len(kept):
                break
            scales[kept], left[kept] = tried.scales[nearer], residual[nearer]
            for part, new in zip(changes, again, strict=True):
                part[kept] = new[nearer]
        runs[0] = replace(runs[0], residual=left.repeat(len(changes)))
        return replace(fits, scales=scales), (changes, runs)

    def _scales(
        self, refit: Refit, fits: Fits, reward: Float[Tensor, "s d"]
    ) -> tuple[Float[Tensor, " s"], tuple[Tensor, ...], list[Refitted]]:
        """λ of each fit, where to start from, and what it took to know."""
        zero = torch.zeros_like(reward)
        start = (zero, zero) if self.antithetic else (zero,)
        if self.scale is not None:
            return torch.full_like(fits.scales, self.scale), start, []
        eta = self.step if self.step is not None else self.inner.step(refit.network.like.dtype)
        direct = [self.inner.directions(refit, fits.take(rows)) for rows in self._groups(refit, fits)]
        known = [each for each in direct if each is not None]
        if known:
            found = Refitted.join(known)
            scales = eta / _energies(reward, found.changes).sqrt()
            ahead = scales[:, None] * found.changes
            return scales, (ahead, -ahead)[: len(start)], [found]
        before = (reward.square() / refit.prior).sum(1)
        which = before.argsort(descending=True)[:PILOTS]
        first = eta / before[which].sqrt()
        pilot = replace(fits.take(which), scales=first)
        twins = replace(self, antithetic=True)
        (plus, minus), runs = twins._pairs(refit, pilot, (zero[which], zero[which]))
        q = _energies(reward[which], (plus - minus) / (2 * first[:, None]))
        return torch.full_like(fits.scales, float(eta / q.max().sqrt())), start, runs

    def check(self, change: float, dtype: torch.dtype = torch.float64) -> None:
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


def difference(
    read: Reading, plus: Float[Tensor, "s d"], minus: Float[Tensor, "s d"] | None, scales: Float[Tensor, " s"]
) -> Tensor:
    """``(y(λ) − y(−λ)) / 2λ``, or ``(y(λ) − y(0)) / λ`` where there is no twin."""
    ends = plus.new_zeros(1, plus.shape[1]) if minus is None else minus
    found = read(plus) - read(ends)
    span = scales if minus is None else 2 * scales
    return found / span.view(-1, *(1,) * (found.ndim - 1))


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


def _two(parts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
    return parts[0], (parts[1] if len(parts) == 2 else None)


def _some(block: Tensor | None, which: Tensor) -> Tensor | None:
    return None if block is None else block[which]
