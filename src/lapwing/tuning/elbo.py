"""A lower bound on the evidence of the tangent model, with the expected likelihood as it is, not as a parabola."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final, get_args

from tqdm.auto import tqdm

from lapwing.ground.data import Source
from lapwing.ground.errors import ConfigError, check_count, check_kind, check_option
from lapwing.ground.types import Unpack
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Gaussian, HeteroscedasticGaussian
from lapwing.linear.solvers import Solver
from lapwing.linear.tangent import Target
from lapwing.posteriors import Posterior
from lapwing.structures.selection import last_layer
from lapwing.tuning.choices import P, chosen, warn_of_endings
from lapwing.tuning.em import EM
from lapwing.tuning.expectation import Expectation, tangent_of, warn_unless_found, with_data
from lapwing.tuning.uphill import Climb

RTOL = 0.03
"""Relative gradient at which a mode is found: the bound moves by far less."""


@final
@dataclass(frozen=True)
class ELBO:
    """Maximises a lower bound on the evidence of the tangent model, over one factor for the prior precisions.

        L = E[log p(y | h(w*) + J ζ)] - ½ (|w*|²_A + log det(I + A⁻¹ G) - γ),      ζ ~ N(0, Λ⁻¹)

    the evidence lower bound of ``N(w*, Λ⁻¹)``, the posterior that predictions are made with. Laplace's evidence takes
    the expected likelihood at second order, ``log p(y | h(w*)) - ½ γ``. For Gaussian noise that is exact and both are
    the evidence. A trained classifier is certain of its data: its output Hessian there is next to nothing, Laplace's
    evidence takes the loss to be flat, and asks for far too weak a prior. The expectation sees where it is not.

    It judges the linear model, trained anew, while predictions have the network's own outputs for their mean: a network
    that is calibrated as it is may become less so.

    It begins at the prior's precisions or, where the evidence is exact, at thirty times those of the largest evidence
    at the trained weights, group by group, whatever the prior's. From there half a decade uphill, and again, then the
    vertex of the parabola through the best three points. For Gaussian noise this is ``EM``, which has the same maximum:
    it chooses every group's precision and the noise, and takes no ``examples``.

    Args:
        target: Tangent model: ``"simplified"``, or ``"affine"`` with the network's outputs as an offset. ``None`` for
            the first where outputs have no noise of their own and the last layer is linear and uncertain, so that its
            weights alone can make them; else for the second.
        examples: Training examples on which the expectation is taken, evenly over the labels; they stand for all.
        samples: Draws, where a posterior is known by solves; of a sampled posterior its own first, at most so many.
        steps: Most precisions tried.
        solver: Finds modes and draws; ``None`` for the posterior's own, or ``CG`` with its curvature.
        data: The training data, for a posterior from a file.
        unpack: Splits one element of them into inputs and targets.
        seed: Of the draws that are not the posterior's.

    Raises:
        ConfigError: If an option makes no sense.

    Cost:
        A precision tried: a mode, and predictions at ``examples`` inputs; by draws a block solve, and a product with
        the Jacobian there. Memory, by draws: those of the first precision, of the last two and of the best, d numbers
        a draw each, whatever ``steps``.

    Example:
        >>> import torch
        >>> import lapwing as lw
        >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
        >>> posterior = lw.Laplace(lw.Categorical()).fit(torch.nn.Linear(2, 2), (x, (x[:, 0] > 0).long()))
        >>> lw.tune(posterior, ELBO()).prior.precision > 0
        True
    """

    target: Target | None = None
    examples: int = 500
    samples: int = 16
    steps: int = 20
    solver: Solver | None = None
    data: Source | None = field(default=None, compare=False, repr=False)
    unpack: Unpack | None = field(default=None, compare=False, repr=False)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.target is not None:
            check_option("target", self.target, get_args(Target))
        for name in ("examples", "samples", "steps"):
            check_count(name, getattr(self, name))
        check_count("seed", self.seed, 0)
        check_kind("solver=", self.solver, (Solver, type(None)), "CG() or SGD()")

    def tune(self, posterior: P, progress: bool) -> P:
        """The posterior of largest bound.

        Args:
            posterior: The posterior.
            progress: Whether to show a progress bar.

        Raises:
            MismatchError: If the data are not those of the fit.
            UnsupportedError: If the posterior lacks its training data, or knows neither its evidence nor a solver.

        Warns:
            ConvergenceWarning: If the bound still grew after ``steps`` precisions, or the last mode was not found.
        """
        posterior = with_data(posterior, self.data, self.unpack)
        target = natural_target(posterior) if self.target is None else self.target
        if posterior.fitted.noise is not None:
            method = EM(samples=self.samples, steps=self.steps, target=target, solver=self.solver, seed=self.seed)
            return method.tune(posterior, progress)
        tangent = tangent_of(posterior, target)
        expectation = Expectation(posterior, tangent, self.solver, self.samples, "auto", RTOL, self.seed)
        with tqdm(desc="ELBO", total=self.steps, disable=not progress, unit="precision", leave=False) as bar:
            trail = Climb(expectation, self.examples, self.seed, self.steps, bar).run()
        best = trail.best
        warn_unless_found(best.found.mode, expectation.solver_used)
        trace = (*trail.steps, best.step(posterior))
        warn_of_endings(posterior, best.found.precisions, posterior.scale, noisy=False)
        return chosen(posterior, best.found.precisions, posterior.scale, trace, best.state.draws)


def natural_target(posterior: Posterior) -> Target:
    """Simplified where outputs have no noise of their own and the last layer is linear and uncertain, else affine."""
    network, data = posterior.network, posterior.training.data
    if isinstance(posterior.fitted, Gaussian | HeteroscedasticGaussian):
        return "affine"
    whole = Network(network.module, tuple(name for name, _ in network.module.named_parameters()))
    try:
        head = last_layer(whole, data)
    except ConfigError:
        return "affine"
    return "simplified" if network.index is None and set(head) <= set(network.names) else "affine"
