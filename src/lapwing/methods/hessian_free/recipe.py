"""The recipe: a trained network, its loader and evaluation points in, a posterior out."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TypeAlias, final

import torch
from torch import Tensor, nn

from lapwing.curvature.ggn import GGN
from lapwing.curvature.repeatability import check_repeatable
from lapwing.ground import probes
from lapwing.ground.data import Data, Source, check_inputs, chunks, concatenated, count, place, take
from lapwing.ground.errors import DataError, UnsupportedError, check_count, check_kind, check_positive
from lapwing.ground.modes import undisturbed
from lapwing.ground.types import Inputs, Unpack
from lapwing.jacobian.model import Model
from lapwing.jacobian.network.network import Network, opened
from lapwing.likelihoods import Gaussian, Likelihood
from lapwing.methods.hessian_free.choices import Objective, PerPoint, PreTrained, Probed
from lapwing.methods.hessian_free.inner import Inner, NewtonCG
from lapwing.methods.hessian_free.linearity import Linearity
from lapwing.methods.hessian_free.points import Points
from lapwing.methods.hessian_free.posterior import Amortised, Answers, HessianFreePosterior, ProbedTable, Table
from lapwing.methods.hessian_free.probed import ProbedCovariance, semidefinite
from lapwing.methods.hessian_free.refit import Refit
from lapwing.methods.hessian_free.regularisers import PIECE, Augmented, InSample, OutputSums, Regulariser
from lapwing.methods.hessian_free.responses import Perturbation
from lapwing.priors import Isotropic, Prior
from lapwing.structures import Task
from lapwing.structures.scaling import scaled
from lapwing.structures.selection import All, Selection

logger = logging.getLogger(__name__)

LEFT_OUT = 0.05
"""Share of all variance beyond which probes are said to be too few."""

Choice: TypeAlias = PerPoint | PreTrained | Probed
"""Which fits."""


@final
@dataclass(frozen=True)
class HessianFree:
    """Hessian-free Laplace: variances of the outputs from how they answer to a refit (McInerney and Kallus 2024).

    With L the loss of the training data and the prior, and ``θ(λ) = argmin L(θ) − λ r(θ)`` near the trained weights θ̂,

        ∂ f(x; θ(λ)) / ∂λ at 0  =  ∇f(x)ᵀ P⁻¹ ∇r,      P = ∇²L(θ̂)                  (theorem 3.1)

    which for ``r = f(x)`` is the variance of ``f(x)`` under the Laplace approximation with the exact Hessian.

    Args:
        likelihood: p(y | f).
        prior: p(θ), with diagonal precision A.
        fits: Which fits: ``Probed`` random ones for all evaluation points, ``PerPoint`` one each, ``PreTrained`` one
            for any input.
        inner: What fits: ``NewtonCG``, ``LBFGS``, or ``Descent`` by an optimiser of your own.
        scale: λ, in 1 / (units of r); ``None`` for the rule that moves the weights by ``step``.
        step: How far a fit moves the weights, in posterior standard deviations; ``None`` for what suits the solver.
        antithetic: Whether each fit has a twin at −λ, on the same mini-batches: their difference cancels what is even
            in λ. Otherwise it is taken from the trained weights, as in the paper.
        centred: Whether the gradient of L at the trained weights is taken out of it, so that they are stationary
            whether or not training came to its end, and P is the Hessian there. Otherwise, as in the paper, a refit
            also makes the progress that training had left.
        weights: Which weights are uncertain, and refitted.
        seed: Of the probes.

    Example:
        >>> import lapwing as lw
        >>> x = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]
        >>> model = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        >>> recipe = HessianFree(lw.Gaussian(1.0), prior=lw.Isotropic(20.0), fits=Probed(probes=6))
        >>> recipe.fit(model, (x, x.sin()), points=x).predict(x[:3]).outputs.variance.shape
        torch.Size([3, 1])

    Source: J. McInerney and N. Kallus, Hessian-Free Laplace in Bayesian Deep Learning, 2024; the probes, twins and
        the rule for λ are not in it.
    """

    likelihood: Likelihood
    prior: Prior = field(default_factory=Isotropic, kw_only=True)
    fits: Choice = field(default_factory=Probed, kw_only=True)
    inner: Inner = field(default_factory=NewtonCG, kw_only=True)
    scale: float | None = field(default=None, kw_only=True)
    step: float | None = field(default=None, kw_only=True)
    antithetic: bool = field(default=True, kw_only=True)
    centred: bool = field(default=True, kw_only=True)
    weights: Selection = field(default_factory=All, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        check_kind("the likelihood", self.likelihood, (Likelihood,), "Categorical() or Gaussian()")
        check_kind("prior=", self.prior, (Prior,), "Isotropic(1.0)")
        check_kind("fits=", self.fits, (PerPoint, PreTrained, Probed), "Probed() or PerPoint()")
        check_kind("inner=", self.inner, (Inner,), "NewtonCG()")
        for name, value in (("scale", self.scale), ("step", self.step)):
            if value is not None:
                check_positive(name, value)
        check_count("seed", self.seed, 0)

    def fit(
        self,
        model: nn.Module,
        data: Source,
        points: Inputs | None = None,
        *,
        unpack: Unpack | None = None,
        progress: bool = False,
    ) -> HessianFreePosterior:
        """The posterior of a trained network.

        Args:
            model: The trained network; used in eval mode and left exactly as it is.
            data: The training data: a loader of ``(x, y)`` or of mappings with ``labels``, or a pair of tensors.
            points: The evaluation points; ``None`` for the training inputs.
            unpack: Splits one element of the loader into ``(inputs, targets)``.
            progress: Whether to show a progress bar.

        Raises:
            DataError: If the data are empty, not finite, change between two passes, or do not fit the likelihood.
            NumericalError: If the Hessian is not positive definite, or a refit ran away.
            UnsupportedError: If the network is random in eval mode, or its outputs depend on other examples.

        Warns:
            ConvergenceWarning: If the responses are not linear in λ.

        Cost:
            ``Probed``: ``2 (probes + residual)`` fits; ``PerPoint``: two for each output of each point; ``PreTrained``:
            two for each output; and four that check the linearity. ``posterior.linearity`` counts them.
        """
        with undisturbed():
            refit = self.refit(model, data, unpack=unpack)
            where = self._points(refit, points)
            with refit.passes.shown(progress):
                answers, linearity = self._answers(refit, where)
        return HessianFreePosterior(refit, self.likelihood, self.prior, answers, linearity)

    def refit(self, model: nn.Module, data: Source, *, unpack: Unpack | None = None) -> Refit:
        """The objective to be fitted again, its data looked at; arguments as in ``fit``."""
        module, read = opened(model, data, "fit(model, data, points)", unpack=unpack)
        self.prior.check_names([name for name, _ in module.named_parameters()])
        network = self.weights.choose(module, read, self.likelihood, self.prior)
        return self._refit(network, read)

    @property
    def perturbation(self) -> Perturbation:
        """How responses are found."""
        return Perturbation(self.inner, self.scale, self.step, self.antithetic)

    def _refit(self, network: Network, data: Data) -> Refit:
        model = Model.of(network, self.likelihood, data)
        task = scaled(Task(model, self.prior, GGN(), None))
        check_repeatable(model, task.totals(), strict=True)
        prior = task.prior.diagonal(network.uncertain, network.weights.double())
        return Refit(network, model.survey, data, self.likelihood, prior, self.centred)

    def _points(self, refit: Refit, points: Inputs | None) -> Inputs:
        if points is None:
            return concatenated([batch.inputs for batch in refit.batches])
        inputs = place(points, refit.network.like)
        if not count(inputs):
            raise DataError("at least one evaluation point", "none", "points=x[None] for a single one")
        check_inputs(inputs)
        return inputs

    def _answers(self, refit: Refit, points: Inputs) -> tuple[Answers, Linearity]:
        match self.fits:
            case PerPoint():
                return self._per_point(refit, points, self.fits.group)
            case PreTrained():
                regulariser = self._rewarded(refit, points, self.fits.objective)
                found = self.perturbation.respond(refit, regulariser, lambda each: each.outputs(_few(points)))
                return Amortised(found), found.linearity
            case Probed():
                return self._probed(refit, points, self.fits)

    def _per_point(self, refit: Refit, points: Inputs, group: int) -> tuple[Answers, Linearity]:
        blocks, linearity = list[Tensor](), None
        for _, inputs in chunks(points, group):
            outputs = refit.trained_outputs(inputs)
            n, c = outputs.shape[0] * outputs[0, ..., 0].numel(), outputs.shape[-1]
            omega = torch.eye(n * c, dtype=torch.float64, device=outputs.device).view(n * c, *outputs.shape)
            responses = self.perturbation.respond(
                refit, OutputSums(inputs, omega), lambda each, inputs=inputs: each.outputs(inputs)
            )
            found = responses.outputs(inputs).view(n, c, n, c).diagonal(dim1=0, dim2=2).movedim(-1, 0)
            blocks.append(semidefinite(0.5 * (found + found.mT)).view(*outputs.shape, c))
            linearity = responses.linearity if linearity is None else linearity.join(responses.linearity)
        assert linearity is not None
        return Table(Points(points), torch.cat(blocks)), linearity

    def _probed(self, refit: Refit, points: Inputs, choice: Probed) -> tuple[Answers, Linearity]:
        like = refit.trained_outputs(points)
        total = choice.probes + choice.residual
        generator = torch.Generator().manual_seed(self.seed)
        omega = probes.rademacher((total, *like.shape), like=like, generator=generator)
        responses = self.perturbation.respond(refit, OutputSums(points, omega), lambda each: each.outputs(points))
        noise = responses.linearity.change
        found = ProbedCovariance.of(omega, responses.outputs(points), choice.probes, noise)
        if found.left_out > LEFT_OUT:
            words = "%d probes leave out %.2g %% of the variance, which %d more estimate coarsely: try Probed(%d, %d)"
            more = (4 * choice.probes, 2 * choice.residual)
            logger.warning(words, choice.probes, 100 * found.left_out, choice.residual, *more)
        return ProbedTable(Points(points), found), responses.linearity

    def _rewarded(self, refit: Refit, points: Inputs, objective: Objective) -> Regulariser:
        """The functionals of pre-trained fits, one for each output."""
        if objective == "augmented":
            return self._augmented(refit)
        if objective == "in_sample":
            like = refit.trained_outputs(take(next(iter(refit.batches)).inputs, slice(0, 1)))
            return InSample(refit.examples * like[0, ..., 0].numel(), like.shape[-1])
        outputs = refit.trained_outputs(points)
        c = outputs.shape[-1]
        signs = outputs.sign() if objective == "absolute" else torch.ones_like(outputs)
        own = torch.eye(c, dtype=outputs.dtype, device=outputs.device).view(c, *(1,) * (outputs.ndim - 1), c)
        return OutputSums(points, own * signs / outputs[..., 0].numel())

    def _augmented(self, refit: Refit) -> Augmented:
        if not isinstance(self.likelihood, Gaussian):
            raise UnsupportedError(
                "Gaussian noise, whose loss is a square to be completed",
                type(self.likelihood).__name__,
                'PreTrained("mean") with the training inputs as points',
            )
        like = refit.trained_outputs(take(next(iter(refit.batches)).inputs, slice(0, 1)))
        variances = 1 / (self.likelihood.weight * self.likelihood.precisions(like).double())
        return Augmented(refit.examples * like[0, ..., 0].numel(), variances)


def _few(points: Inputs) -> Inputs:
    """Points enough to see whether a response is linear."""
    return take(points, slice(0, min(count(points), PIECE)))
