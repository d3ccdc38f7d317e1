"""The recipe: a trained network, its loader and evaluation points in, a posterior out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from torch import nn

from lapwing.curvature.fold import check_repeatable
from lapwing.ground.data.inputs import InputsLike, checked, concatenated, over_tensors
from lapwing.ground.data.sources import Source, Unpack
from lapwing.ground.distributed import check_alike
from lapwing.ground.errors import check_count, check_kind, check_positive
from lapwing.ground.files.records import checksum
from lapwing.ground.precision import wide
from lapwing.ground.progress import working
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.output import Output
from lapwing.jacobian.network.unwrapping import opened
from lapwing.likelihoods import Likelihood
from lapwing.methods.hessian_free.fits import PerPoint, PreTrained, Probed
from lapwing.methods.hessian_free.inner import Inner, NewtonCG
from lapwing.methods.hessian_free.posterior import HessianFreePosterior
from lapwing.methods.hessian_free.refit import Refit
from lapwing.methods.hessian_free.responses import Responder
from lapwing.methods.laplace import Laplace, check_same_fit
from lapwing.priors import Isotropic, Prior
from lapwing.structures.selection import All, Selection


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
        inner: What fits: ``NewtonCG``, or ``Descent`` by an optimiser of your own.
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
        >>> import torch
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
    fits: PerPoint | PreTrained | Probed = field(default_factory=Probed, kw_only=True)
    inner: Inner = field(default_factory=NewtonCG, kw_only=True)
    scale: float | None = field(default=None, kw_only=True)
    step: float | None = field(default=None, kw_only=True)
    antithetic: bool = field(default=True, kw_only=True)
    centred: bool = field(default=True, kw_only=True)
    weights: Selection = field(default_factory=All, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        Laplace(self.likelihood, prior=self.prior, weights=self.weights)  # has the same to say of them
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
        points: InputsLike | None = None,
        *,
        output: Output = None,
        unpack: Unpack | None = None,
        progress: bool | None = None,
    ) -> HessianFreePosterior:
        """The posterior of a trained network.

        Args:
            model: The trained network; used in eval mode and left exactly as it is.
            data: The training data: a loader of ``(x, y)`` or of mappings with ``labels``, or a pair ``(x, y)`` of
                tensors, arrays, data frames or lists.
            points: The evaluation points; ``None`` for the training inputs.
            output: Which part of what the network returns is the output that the likelihood speaks of: a key, an index
                or a function of it. ``None`` where it returns one tensor, or something with ``logits``.
            unpack: Splits one element of the loader into ``(inputs, targets)``.
            progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.

        Raises:
            DataError: If the data are empty, not finite, change between two passes, or do not fit the likelihood.
            NumericalError: If the Hessian is not positive definite, or a refit ran away.
            UnsupportedError: If the network is random in eval mode, or its outputs depend on other examples.

        Warns:
            ConvergenceWarning: If the responses are not linear in λ.

        Cost:
            ``Probed``: ``2 (probes + residual)`` fits; ``PerPoint``: two for each output of each point; ``PreTrained``:
            two for each output; and those that choose λ and check the linearity: ``posterior.linearity`` counts them.
        """
        with undisturbed(), working("fit", progress):
            responder = self.responder(model, data, output=output, unpack=unpack)
            fitted = responder.refit.model
            if points is None:
                where = over_tensors(fitted.data.joined, concatenated([batch.inputs for batch in fitted.data]))
            else:
                where = checked(points, fitted.network.like)
                if fitted.data.shared:
                    check_alike(True, checksum(where), "evaluation points")
            with responder.refit.work.shown(progress):
                covariances, linearity = self.fits.covariances(responder, where)
        return HessianFreePosterior(responder.refit, self.prior, covariances, linearity, likelihood=self.likelihood)

    def responder(
        self, model: nn.Module, data: Source, *, output: Output = None, unpack: Unpack | None = None
    ) -> Responder:
        """How responses are found, the data looked at; arguments as in ``fit``."""
        self.prior.check_centred("responses of a network")
        module, read = opened(model, data, "fit(model, data, points)", unpack=unpack)
        check_same_fit(read, self, module)
        task = Laplace(self.likelihood, prior=self.prior, weights=self.weights).task(module, read, output=output)
        check_repeatable(task.model, task.totals(), strict=True)
        network = task.model.network
        prior = task.prior.diagonal(network.uncertain, wide(network.weights))
        refit = Refit(task.model, prior, self.centred)
        return Responder(refit, self.inner, self.scale, self.step, self.antithetic, self.seed)
