"""Prior and noise precisions by their logarithms, and who chooses them: the evidence of all data, or the gradient."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.ground.errors import ConfigError, NumericalError, TooLargeError, check_count, check_kind, check_option
from lapwing.ground.layout import Layout
from lapwing.ground.precision import wide, wide_device, wide_like
from lapwing.likelihoods import Likelihood
from lapwing.methods.laplace import Laplace
from lapwing.posteriors import Posterior
from lapwing.priors import GPrior, Prior
from lapwing.structures import AFFORDABLE, KFAC, Auto, Full, Structure
from lapwing.tuning import At, EvidenceGradient, tune


def own_noises(likelihood: Likelihood) -> Float[Tensor, " c"] | None:
    """Noise precision of each output, where the likelihood has one for each and they share none; else ``None``."""
    given = likelihood.noise_precision
    return likelihood.own_noises(len(given)) if isinstance(given, tuple) else None


@final
class LearnedHyperparameters(nn.Module):
    """The precisions of a prior, and factors on the noise precision of a Gaussian likelihood, as logarithms.

    One factor for each output, where there is a precision for each and they share none; else one for all. Every real
    number is then a valid value, and a step of an optimiser a relative change.

    Args:
        prior: The prior to start from.
        likelihood: The likelihood to start from, whose noise the logarithm is relative to; one of another kind than
            ``Gaussian`` has none to learn.
        layout: Names and shapes of the weights.
        like: Tensor whose device the parameters take; they are float64.
        noise: Whether the noise may change.

    Example:
        >>> from lapwing.likelihoods import Gaussian
        >>> from lapwing.priors import Isotropic
        >>> layout = Layout(("w",), ((3,),))
        >>> hyper = LearnedHyperparameters(Isotropic(2.0), Gaussian(4.0), layout, torch.zeros(1))
        >>> hyper.log_noise.data += 1.0
        >>> hyper.prior, round(hyper.likelihood.precision, 3)
        (Isotropic(precision=2), 10.873)
    """

    def __init__(
        self, prior: Prior, likelihood: Likelihood, layout: Layout, like: Tensor, *, noise: bool = True
    ) -> None:
        super().__init__()
        self._prior = prior
        self.reference = likelihood
        self.layout = layout
        if isinstance(prior, GPrior):
            raise ConfigError(
                "a prior that does not follow the curvature while weights are trained",
                f"{prior}",
                "Isotropic() or Layerwise()",
            )
        group, groups = prior.groups(layout)
        self.group = group.to(wide_device(like.device))
        self.sizes = wide(torch.bincount(self.group, minlength=groups))
        self.learns_noise = noise and likelihood.noise is not None
        self.log_precisions = nn.Parameter(prior.precisions(layout).log().to(**wide_like(like)))
        self.own_noises = own_noises(likelihood)
        shape = () if self.own_noises is None else self.own_noises.shape
        zeros = torch.zeros(shape, **wide_like(like))
        self.log_noise = nn.Parameter(zeros, requires_grad=self.learns_noise)

    @property
    def prior(self) -> Prior:
        """The prior with the precisions it has now.

        Raises:
            NumericalError: If one is not finite.
        """
        self._check(self.log_precisions)
        return self._prior.with_precisions(self.log_precisions.detach().exp().cpu())

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood with the noise it has now.

        Raises:
            NumericalError: If it is not finite.
        """
        self._check(self.log_noise)
        factors = self.log_noise.detach().exp().cpu()
        if self.own_noises is None:
            return self.reference.scaled(float(factors))
        return self.reference.with_own_noises(self.own_noises * factors)

    def scales(self, outputs: int) -> Float[Tensor, " c"]:
        """Noise precision of each output relative to the reference.

        Args:
            outputs: Outputs c of one position.
        """
        return self.log_noise.exp().expand(outputs)

    def deviations(self, like: Tensor) -> Float[Tensor, " d"]:
        """Prior standard deviation of each weight, ``A^-½``, in the dtype of ``like``."""
        return torch.exp(-0.5 * self.log_precisions).to(like)[self.group]

    def nll(self, outputs: Float[Tensor, "*batch c"], targets: Tensor) -> Float[Tensor, ""]:
        """Negative log likelihood of canonical targets under the noise as it is now, summed, nats, float64."""
        scales = self.scales(outputs.shape[-1])
        misfits = self.reference.misfits(outputs, targets)
        observations = self.reference.count(targets) / len(scales)
        changed = (scales - 1) * misfits - observations * scales.log()
        return self.reference.total_nll(outputs, targets) + 0.5 * changed.sum()

    def log_det_prior(self) -> Float[Tensor, ""]:
        """``log det A = Σ_g d_g log α_g``."""
        return (self.sizes * self.log_precisions).sum()

    def square_norm(self, weights: Float[Tensor, " d"]) -> Float[Tensor, ""]:
        """``θᵀ A θ = Σ_g α_g |θ_g|²``."""
        norms = torch.zeros_like(self.log_precisions).index_add(0, self.group, wide(weights).square())
        return (self.log_precisions.exp() * norms).sum()

    @torch.no_grad()
    def move_to(self, prior: Prior, likelihood: Likelihood) -> None:
        """Go to other values."""
        self.log_precisions.copy_(prior.precisions(self.layout).log())
        if not self.learns_noise:
            return
        if self.own_noises is None:
            self.log_noise.fill_(math.log(likelihood.noise_over(self.reference) or 1.0))
            return
        noises = own_noises(likelihood)
        assert noises is not None
        self.log_noise.copy_((noises / self.own_noises).log())

    def _check(self, logs: Tensor) -> None:
        values = logs.detach().exp()
        if not bool((torch.isfinite(values) & (values > 0)).all()):
            raise NumericalError(
                "hyper-parameters that are positive and finite",
                f"logarithms {logs.detach().flatten()[:4].tolist()}",
                "a smaller learning rate for marginal.hyperparameters(), or updates=ByEvidence()",
            )


@dataclass(frozen=True)
class Updates(abc.ABC):
    """A way to change prior and noise during training."""

    by_gradient: ClassVar[bool] = False
    """Whether the loss's gradient moves them."""

    @abc.abstractmethod
    def end_of_epoch(
        self, epoch: int, hyper: LearnedHyperparameters, fit: Callable[[Laplace], Posterior] | None
    ) -> None:
        """Change them after an epoch that counts.

        Args:
            epoch: Epochs since the warm-up, from 0 for its own end.
            hyper: Changed in place.
            fit: Fits a recipe to the network as it is now, where there are all training data.
        """


@final
@dataclass(frozen=True)
class ByEvidence(Updates):
    """After an epoch, the prior and the noise of largest evidence at the weights as they are, from all the data.

    Immer et al. 2021, algorithm 1, its steps in the hyper-parameters taken to their optimum: with one
    eigendecomposition that costs no more than one of them. The evidence is that of all data, so it has none of the bias
    of a mini-batch's log-determinant, whatever the loss uses for the weights.

    Args:
        structure: How the curvature is held. ``None`` is exact, in the view of the fewer weights or observations, where
            ``Auto`` would afford that, and ``Auto()`` beyond; for the mode over the weights, and ``KFAC()`` beyond.
        every: Epochs between two updates.
        at: ``"weights"``, or ``"mode"``: the evidence one Newton step away, with its term ½ gᵀΛ⁻¹g, for a network that
            is not near its optimum when it is asked; Gaussian likelihoods only. It is of what the linear model could
            fit, which need not be what training reaches.

    Raises:
        ConfigError: If an option makes no sense.

    Cost:
        A Laplace fit: a pass over the data with c cotangents, and its eigendecomposition. Noises of several outputs:
        a prediction of the data, and both again where a noise moves.
    """

    structure: Structure | None = None
    every: int = 1
    at: At = "weights"

    def __post_init__(self) -> None:
        check_kind("structure=", self.structure, (Structure, type(None)), "KFAC() or None")
        check_option("at", self.at, get_args(At))
        check_count("every", self.every)

    def end_of_epoch(
        self, epoch: int, hyper: LearnedHyperparameters, fit: Callable[[Laplace], Posterior] | None
    ) -> None:
        """Go to the best values; see ``Updates.end_of_epoch``.

        Raises:
            ConfigError: If there are no data.
        """
        if epoch % self.every:
            return
        if fit is None:
            raise ConfigError(
                "all training data at the end of an epoch, for the evidence",
                "none",
                "marginal.end_of_epoch(loader), or updates=ByGradient(start=None)",
            )
        recipe = Laplace(hyper.likelihood, prior=hyper.prior)
        if self.structure is not None:
            posterior = fit(replace(recipe, structure=self.structure))
        else:
            posterior = self._fitted_if_affordable(recipe, fit)
        method = EvidenceGradient(noise=hyper.learns_noise, at=self.at)
        one_factor = hyper.own_noises is None  # for the noise of all outputs; ``tune`` chooses one for each
        tuned = method.tune(posterior, False) if one_factor else tune(posterior, method)
        hyper.move_to(tuned.prior, tuned.likelihood)

    def _fitted_if_affordable(
        self, recipe: Laplace, fit: Callable[[Laplace], Posterior], max_flops: float = AFFORDABLE
    ) -> Posterior:
        """The posterior in full where ``Auto`` would afford that, else in a structure it affords."""
        at_mode = self.at == "mode"
        full = Full(view="weights" if at_mode else "auto", max_flops=max_flops)
        try:
            return fit(replace(recipe, structure=full))
        except TooLargeError:
            return fit(replace(recipe, structure=KFAC() if at_mode else Auto()))


@final
@dataclass(frozen=True)
class ByGradient(Updates):
    """The loss's own gradient, by the user's optimiser, batch by batch: weights and hyper-parameters together.

    The precisions are as good as the log-determinant of the loss: that of a mini-batch is biased (see ``Gram`` and
    ``Bound``), and all data in one batch have no bias. During the warm-up the noise of a Gaussian likelihood is learned
    too, by the likelihood alone.

    Args:
        start: Where the precisions start from after the warm-up: an update by evidence, or ``None`` to keep the prior
            that was given. A prior far too strong for the network shrinks it to a constant before its gradient has
            weakened it, and a constant network is a local maximum of the evidence.
    """

    start: ByEvidence | None = field(default_factory=ByEvidence)

    by_gradient = True

    def end_of_epoch(
        self, epoch: int, hyper: LearnedHyperparameters, fit: Callable[[Laplace], Posterior] | None
    ) -> None:
        """Only the start; see ``Updates.end_of_epoch``."""
        if epoch == 0 and self.start is not None:
            self.start.end_of_epoch(epoch, hyper, fit)
