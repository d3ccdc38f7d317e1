"""Length-scales of filters by how much the images they make vary: the slow alternative to a g-prior."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from lapwing import linalg
from lapwing.ground import probes
from lapwing.ground.errors import check_count, check_positive
from lapwing.jacobian.model import undisturbed
from lapwing.linear.kernel import GramMatrix
from lapwing.linear.model import Chunk
from lapwing.linear.problem import Known, Problem
from lapwing.linear.solvers import CG
from lapwing.methods.ct.filters import Filtered, MaternFilters
from lapwing.methods.ct.image import RANK, RTOL, ImagePosterior
from lapwing.methods.ct.observed import only
from lapwing.posteriors.solved import warn_unless
from lapwing.priors import Isotropic
from lapwing.structures import LowRank


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

    Args:
        steps: Of Adam.
        rate: Its learning rate, of the logarithms of a and ψ.
        probes: Probes of the evidence's log determinant.
        samples: Draws of each block.
        rank: Of the randomised preconditioner.
        refresh: Steps after which it is made anew.
        rtol: Relative residual of a solve.
        seed: Of everything random.

    Example:
        >>> TVPredCP(steps=100).rate
        0.05
    """

    steps: int = 300
    rate: float = 0.05
    probes: int = 10
    samples: int = 10
    rank: int = 200
    refresh: int = 10
    rtol: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "probes", "samples", "rank", "refresh"):
            check_count(name, getattr(self, name))
        check_positive("rate", self.rate, "0.05")
        check_positive("rtol", self.rtol, "0.1")

    @undisturbed()
    def fit(self, posterior: ImagePosterior, *, progress: bool = False) -> ImagePosterior:
        """The posterior with such a prior in place of its own; the noise stays.

        Args:
            posterior: Whose network, rays and noise these are.
            progress: Whether to show a progress bar.

        Cost:
            A solve for w*. Each step is a block solve with all rays, and ``samples`` products with J and its transpose
            for each block of the network. The rows of T J are made and kept.
        """
        observed, generator = posterior.observed, torch.Generator().manual_seed(self.seed)
        start = MaternFilters.of(observed.layout, 1.0, 0.5, observed.weights.new_empty(0, dtype=torch.float64))
        theta = [part.log().requires_grad_() for part in (start.precisions, start.lengths)]
        optimiser, recipe = torch.optim.Adam(theta, self.rate), None
        image, rows = only(observed.image, self.samples * sum(start.smooth)), observed.features
        with torch.no_grad():
            (rays,) = replace(observed, examples=None).visit()
            targets = rays.targets - rays.outputs + (rows @ observed.weights)[:, None]
            root = float(posterior.likelihood.noise or 1.0) ** 0.5  # in units of the noise, of precision 1
            rows, targets = root * rows, root * targets
        mode = self._mode(start, rows, targets)
        with tqdm(range(self.steps), "TV-PredCP", disable=not progress, leave=False) as bar:
            for step in bar:
                filters = replace(start, precisions=theta[0].exp(), lengths=theta[1].exp())
                with torch.no_grad():
                    fixed = MaternFilters(start.layout, filters.precisions, filters.lengths)
                    view = kernel_problem(fixed.adjoint(rows.mT).mT.contiguous())
                    if recipe is None or step % self.refresh == 0:
                        recipe = Known(LowRank(min(self.rank, len(rows))).curvature(view))
                solver = CG(rtol=self.rtol, max_iterations=50, preconditioner=recipe)
                value = self._evidence(filters, rows, mode, view, solver, generator)
                value = value + log_prior(complexities(filters, image, self.samples, generator), theta[1])
                optimiser.zero_grad()
                (-value).backward()
                optimiser.step()
        found = [part.detach().exp() for part in theta]
        made = replace(observed, image=Filtered(observed.image, MaternFilters(start.layout, *found)))
        return replace(posterior, observed=made, prior=Isotropic(1.0), trace=())

    def _mode(
        self, filters: MaternFilters, rows: Float[Tensor, "n d"], targets: Float[Tensor, "n 1"]
    ) -> Float[Tensor, "d 1"]:
        """``w* = A⁻¹ Fᵀ C⁻¹ r`` for targets r and rows F (equation 7.11)."""
        with torch.no_grad():
            view = kernel_problem(filters.adjoint(rows.mT).mT.contiguous())
            solver = CG(rtol=RTOL, preconditioner=LowRank(min(RANK, len(rows))))
            found = solver.solve(view, targets)
            warn_unless(found, solver.cure)
            return filters.forward(filters.adjoint(rows.mT @ found.value).double())

    def _evidence(
        self,
        filters: MaternFilters,
        rows: Float[Tensor, "n d"],
        mode: Float[Tensor, "d 1"],
        view: Problem,
        solver: CG,
        generator: torch.Generator,
    ) -> Float[Tensor, ""]:
        """What has the gradient of ``-½ |w*|²_A - ½ log |C|``, ``C = I + F A⁻¹ Fᵀ``, for a mode w* and rows F.

        ``tr C⁻¹ ∂C = E (C⁻¹ z)ᵀ ∂C (P⁻¹ z)`` for z of N(0, P), P the preconditioner: of the identity, probes would see
        the largest eigenvalues of one block beside those of all, and next to nothing else.
        """
        with torch.no_grad():
            p = solver.prepared(view) or view.prior
            root = p.root()
            z = root @ probes.gaussian((root.shape[1], self.probes), like=rows, generator=generator)
            pulled = (torch.cat([solver.solve(view, z).value, p.solve(z)], 1).mT.contiguous() @ rows).mT
        left, right = filters.adjoint(pulled).split(self.probes, 1)
        return -0.5 * filters.inverse(mode).square().sum() - 0.5 * (left * right).sum() / self.probes


def kernel_problem(rows: Float[Tensor, "n d"]) -> Problem:
    """``I + F Fᵀ``: what rays whose noise has precision 1 measure under a standard normal prior.

    Args:
        rows: F.
    """
    return Problem(GramMatrix(linalg.LowRank(rows)), linalg.Diagonal(rows.new_ones(len(rows))))


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
            ends = images.new_zeros(images.narrow(axis, 0, 1).shape)
            signs -= images.diff(dim=axis).sign().diff(dim=axis, prepend=ends, append=ends)
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
