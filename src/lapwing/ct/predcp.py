"""Length-scales of filters by how much the images they make vary: the slow alternative to a g-prior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ct.filters import Filtered, MaternFilters
from lapwing.ct.image import RANK, RTOL, ImagePosterior
from lapwing.ct.variation import undiffed
from lapwing.ground import probes
from lapwing.ground.errors import ConfigError, ConvergenceWarning, check_count, check_positive, warn
from lapwing.ground.precision import wide, wide_like
from lapwing.ground.progress import Bar
from lapwing.jacobian.network.modes import undisturbed
from lapwing.linalg import Diagonal
from lapwing.linear.model import Chunk
from lapwing.linear.preconditioners.base import GivenCurvature
from lapwing.linear.problem import Problem
from lapwing.linear.solvers import CG
from lapwing.linear.tangent import Tangent
from lapwing.posteriors import Step
from lapwing.priors import Isotropic
from lapwing.structures import LowRank

WINDOW = 20
"""Steps whose mean is looked at: one step says little, its gradient is noise."""


@final
@dataclass(frozen=True)
class TVPredCP:
    """``max_{a, ψ} -½ |w*|²_A - ½ log |C| + Σ_k (-κ_k + log |∂κ_k / ∂ψ_k|)``, by Adam (Antorán 2024, section 7.3.1).

    The prior over filters is ``MaternFilters``; κ_k is the total variation that block k alone would make,
    ``E TV(J_k w_k)`` over draws of its prior, and has a standard exponential prior: a predictive complexity prior. The
    gradient of the evidence's log determinant, ``C = b J_T A⁻¹ J_Tᵀ + I`` for features J_T of the rays, comes from
    probes and conjugate gradients, that of κ from draws.

    It is one step of expectation maximisation, as in the source: the mode w* of the linear model under a = 1 is found
    once, and kept. Were it found anew at every step, the evidence would grow towards the head of the network alone:
    its features are the image already, and every other block is taken to be certain.

    It has settled where means over 20 steps no longer move: the logarithms of a, and the correlations of neighbouring
    taps. The last such mean is taken. The source makes 3000 steps at a rate of 0.01, and chooses the noise too.

    Args:
        steps: Of Adam, at most; at least 40, for two means to compare.
        rate: Its learning rate, of the logarithms of a and ψ.
        tolerance: How far they may still move.
        probes: Probes of the evidence's log determinant.
        samples: Draws of each block.
        rank: Of the randomised preconditioner.
        refresh: Steps after which it is made anew.
        rtol: Relative residual of a solve.
        seed: Of everything random.

    Example:
        >>> TVPredCP(steps=100).rate
        0.1
    """

    steps: int = 1000
    rate: float = 0.1
    tolerance: float = 0.05
    probes: int = 10
    samples: int = 10
    rank: int = 200
    refresh: int = 20
    rtol: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("steps", self.steps, 2 * WINDOW, usual=1000)
        for name in ("probes", "samples", "rank", "refresh"):
            check_count(name, getattr(self, name))
        check_positive("rate", self.rate, "0.1")
        check_positive("tolerance", self.tolerance, "0.05")
        check_positive("rtol", self.rtol, "0.1")

    @undisturbed()
    def fit(self, posterior: ImagePosterior, *, progress: bool | None = None) -> ImagePosterior:
        """The posterior with such a prior in place of its own, and the precisions of every step; the noise stays.

        Args:
            posterior: Whose network, rays and noise these are.
            progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

        Raises:
            ConfigError: If no filter has more than one tap.

        Warns:
            ConvergenceWarning: If it ended before it had settled, or the mode missed its tolerance.

        Cost:
            A solve for w*. Each step is a block solve with all rays, and ``samples`` products with J and its transpose
            for each block of the network. The rows of T J are made and kept, and those of J where they fit.
        """
        observed = posterior.observed
        generator = torch.Generator().manual_seed(self.seed)
        start = MaternFilters.of(observed.layout, 1.0, 0.5, torch.empty(0, **wide_like(observed.weights)))
        if not any(start.smooth):
            raise ConfigError(
                "filters of more than one tap for TV-PredCP", "none", "the g-prior: ImagePosterior.of(...)"
            )
        theta = [part.log().requires_grad_() for part in (start.precisions, start.lengths)]
        optimiser = torch.optim.Adam(theta, self.rate)
        recipe = None
        path = list[Tensor]()
        left = math.inf
        image = observed.image_chunk(self.samples * sum(start.smooth))
        mode = self._mode(posterior, start)
        with Bar("TV-PredCP", most=self.steps, progress=progress) as bar:
            for step in range(self.steps):
                filters = replace(start, precisions=theta[0].exp(), lengths=theta[1].exp())
                view = rays_problem(posterior, filters)
                if recipe is None or step % self.refresh == 0:
                    recipe = GivenCurvature(LowRank(min(self.rank, view.size)).curvature(view))
                solver = CG(rtol=self.rtol, max_iterations=20, preconditioner=recipe)
                value = self._evidence(posterior, filters, mode, view, solver, generator)
                value = value + log_prior(complexities(filters, image, self.samples, generator), theta[1])
                optimiser.zero_grad()
                (-value).backward()
                optimiser.step()
                path.append(torch.stack(theta).detach())
                left = movement(path)
                bar.update(said=f"moved by {left:.1g}, done at {self.tolerance:.1g}")
                if left <= self.tolerance:
                    break
            else:
                found = f"after {self.steps} steps of TV-PredCP some precision or correlation still moved by {left:.1g}"
                warn(f"{found}. Try a larger steps=", ConvergenceWarning)
        chosen = MaternFilters(start.layout, *torch.stack(path[-WINDOW:]).mean(0).exp())
        noise = posterior.likelihood.noise
        trace = tuple(Step(None, tuple(at[0].exp().tolist()), noise, None) for at in path)
        return replace(posterior, observed=observed.filtered(chosen), prior=Isotropic(1.0), trace=trace)

    def _mode(self, posterior: ImagePosterior, filters: MaternFilters) -> Float[Tensor, "d 1"]:
        """w*, the mode of the linear model under a prior (equation 7.11)."""
        solver = CG(preconditioner=LowRank(min(RANK, len(posterior.observed.targets))))
        tangent = Tangent(Filtered(posterior.observed, filters))
        found = tangent.mode(Isotropic(1.0), posterior.noise_scale, solver=solver, rtol=RTOL)
        return filters.forward(wide(found.weights[:, None]))

    def _evidence(
        self,
        posterior: ImagePosterior,
        filters: MaternFilters,
        mode: Float[Tensor, "d 1"],
        view: Problem,
        solver: CG,
        generator: torch.Generator,
    ) -> Float[Tensor, ""]:
        """What has the gradient of ``-½ |w*|²_A - ½ log |C|``, ``C = I + Rᵀ A⁻¹ R``, for a mode w*.

        ``tr C⁻¹ ∂C = E (C⁻¹ z)ᵀ ∂C (P⁻¹ z)`` for z of N(0, P), P the preconditioner: of the identity, probes would see
        the largest eigenvalues of one block beside those of all, and next to nothing else.
        """
        with torch.no_grad():
            p = solver.preconditioner_of(view) or view.prior
            root = p.root()
            z = root @ probes.gaussian((root.shape[1], self.probes), like=mode.to(p.dtype), generator=generator)
            pulled = posterior.problem.root @ torch.cat([solver.solve(view, z).value, p.solve(z)], 1)
        left, right = filters.adjoint(pulled).split(self.probes, 1)
        return -0.5 * filters.inverse(mode).square().sum() - 0.5 * view.scale * (left * right).sum() / self.probes


def rays_problem(posterior: ImagePosterior, filters: MaternFilters) -> Problem:
    """``C = I + Rᵀ A⁻¹ R`` of what the rays measure, ``R Rᵀ`` their curvature, under a prior over filters.

    Args:
        posterior: Whose rays and noise these are.
        filters: The prior.
    """
    fixed = MaternFilters(filters.layout, filters.precisions.detach(), filters.lengths.detach())
    white = Filtered(posterior.observed, fixed)
    return Problem.of(white, Diagonal(torch.ones_like(white.weights)), posterior.noise_scale).function_view()


def movement(path: Sequence[Float[Tensor, "2 g"]]) -> float:
    """How far log precisions, and correlations ``exp(-1 / ψ)`` of neighbouring taps, moved from one window to the next.

    Length-scales far below one tap say all the same, that taps are independent: they are not waited for.

    Args:
        path: log a and log ψ at every step.
    """
    if len(path) < 2 * WINDOW:
        return math.inf
    before, after = torch.stack(list(path[-2 * WINDOW :])).view(2, WINDOW, *path[0].shape).mean(1)
    correlations = (-(-after[1]).exp()).exp() - (-(-before[1]).exp()).exp()
    return float(torch.stack([after[0] - before[0], correlations]).abs().max())


def complexities(
    filters: MaternFilters, image: Chunk, samples: int, generator: torch.Generator | None = None
) -> Float[Tensor, " h"]:
    """``κ_k = E TV(J_k w_k)`` by draws of each block that has a ψ, differentiable in (a, ψ).

    ``TV(x) = ⟨∂TV(x), x⟩``, where the sign pattern ∂TV is constant almost everywhere. The first derivative is unbiased.
    The second, as the source has it, leaves out what comes from signs that change.

    Args:
        filters: The prior.
        image: J.
        samples: Draws of each block.
        generator: Source of randomness.
    """
    member = filters.member()[:, torch.tensor(filters.smooth)]
    noise = probes.gaussian((len(member), samples), like=member, generator=generator)
    drawn = filters.forward((member[:, :, None] * noise[:, None]).flatten(1))
    with torch.no_grad():
        images = image.push(drawn.to(image.outputs))
        signs = torch.zeros_like(images)
        for axis in range(2, images.ndim - 1):
            signs += undiffed(images.diff(dim=axis).sign(), axis)
        pulled = image.pull(signs).to(drawn)
    return (drawn * pulled).sum(0).view(-1, samples).mean(1)


def log_prior(kappa: Float[Tensor, " h"], log_lengths: Float[Tensor, " g"]) -> Float[Tensor, ""]:
    """``Σ_k (-κ_k + log |∂κ_k / ∂ψ_k|)`` over the blocks that have a ψ.

    Args:
        kappa: κ of these, differentiable in the next.
        log_lengths: log ψ of all.
    """
    (slope,) = torch.autograd.grad(kappa.sum(), log_lengths, create_graph=True)
    chosen = slope != 0
    return (slope[chosen].abs().log() - log_lengths[chosen]).sum() - kappa.sum()
