"""Which fits: one a point, a few for all points, or random ones; and what their responses tell."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data.inputs import Inputs, chunks, count, take
from lapwing.ground.errors import check_count, check_option
from lapwing.ground.precision import wide_like
from lapwing.methods.hessian_free.posterior import AmortisedCovariances, OutputCovariances, PointCovariances, Points
from lapwing.methods.hessian_free.probed import ProbedCovariance, Variances
from lapwing.methods.hessian_free.refit import Refit
from lapwing.methods.hessian_free.regularisers import PIECE, InSample, OutputSums, Regulariser, WeightSums
from lapwing.methods.hessian_free.responses import Linearity, Responder, Responses

logger = logging.getLogger(__name__)

LEFT_OUT = 0.05
"""Share of all variance beyond which probes are said to be too few."""

Objective: TypeAlias = Literal["mean", "absolute", "in_sample", "augmented"]
"""What a pre-trained fit is rewarded for."""


@final
@dataclass(frozen=True)
class PerPoint:
    """A fit for each output of each evaluation point (McInerney and Kallus 2024, algorithm 1).

    The refit rewarded for ``f_k(x)`` answers at x with column k of ``J P⁻¹ Jᵀ`` (theorem 3.1): the exact covariance of
    the outputs there, and the dearest way to it.

    Args:
        group: Evaluation points whose fits go through the data together.

    Raises:
        ConfigError: If the group is not positive.

    Example:
        >>> PerPoint()
        PerPoint(group=64)
    """

    group: int = 64

    def __post_init__(self) -> None:
        check_count("group", self.group)

    def covariances(self, responder: Responder, points: Inputs) -> tuple[OutputCovariances, Linearity]:
        """Covariances of the outputs at the points, and how far they are to be trusted."""
        blocks = list[Tensor]()
        checks = list[Linearity]()
        for _, inputs in chunks(points, self.group):
            outputs = responder.refit.trained_outputs(inputs)
            c = outputs.shape[-1]
            n = outputs[..., 0].numel()
            omega = torch.eye(n * c, **wide_like(outputs)).view(n * c, *outputs.shape)
            responses, linearity = responder.respond(
                OutputSums(omega, inputs), partial(Responses.outputs, inputs=inputs)
            )
            within = responses.outputs(inputs).view(n, c, n, c).diagonal(dim1=0, dim2=2).movedim(-1, 0)
            symmetric = 0.5 * (within + within.mT)
            blocks.append(symmetric.view(*outputs.shape, c))
            checks.append(linearity)
        return PointCovariances(Points(points), ProbedCovariance.exact(torch.cat(blocks))), Linearity.join(checks)

    def weights(self, responder: Responder) -> tuple[Variances, Linearity]:
        """Variances of single weights by a fit for each."""
        trained = responder.refit.trained
        variances = list[Tensor]()
        checks = list[Linearity]()
        for z in torch.eye(len(trained), dtype=trained.dtype, device=trained.device).split(self.group):
            responses, linearity = responder.respond(WeightSums(z), Responses.weights)
            variances.append((responses.weights() * z).sum(1))
            checks.append(linearity)
        value = torch.cat(variances)[:, None]
        return Variances(value, torch.zeros_like(value), 0), Linearity.join(checks)


@final
@dataclass(frozen=True)
class PreTrained:
    """One fit for each output, used at any input (McInerney and Kallus 2024, algorithm 2).

    With ``ḡ`` the mean gradient of the output over the evaluation points the answer is ``|∇f(x)ᵀ P⁻¹ ḡ|``. Mind that
    this is the size of the covariance of ``f(x)`` with the mean output, *not* the variance of ``f(x)``: it is close
    only where the gradients at the evaluation points resemble the one at x, and can vanish by cancellation. For several
    outputs it is the absolute value ``(M²)^½`` of the symmetric part M of ``J(x) P⁻¹ Ḡᵀ``.

    Args:
        objective: What is rewarded: ``"mean"`` the mean output over the evaluation points (equation 25), ``"absolute"``
            its absolute value with the signs of the trained outputs (27), ``"in_sample"`` that over the training data,
            mini-batch by mini-batch (28), ``"augmented"`` the mean over the training data likewise: for Gaussian noise
            that is to fit targets shifted by ``λ σ² / n`` (29).

    Raises:
        ConfigError: If the objective is none of these.

    Example:
        >>> PreTrained("augmented")
        PreTrained(objective='augmented')
    """

    objective: Objective = "mean"

    def __post_init__(self) -> None:
        check_option("objective", self.objective, get_args(Objective))

    def covariances(self, responder: Responder, points: Inputs) -> tuple[OutputCovariances, Linearity]:
        """Covariances with the mean output at any input, and how far they are to be trusted."""
        few = take(points, slice(0, min(count(points), PIECE)))  # enough to see whether a response is linear
        regulariser = self._rewarded(responder.refit, points)
        responses, linearity = responder.respond(regulariser, lambda each: each.outputs(few))
        return AmortisedCovariances(responses), linearity

    def _rewarded(self, refit: Refit, points: Inputs) -> Regulariser:
        """The functionals, one for each output."""
        over_training_data = self.objective in ("in_sample", "augmented")
        signed = self.objective in ("absolute", "in_sample")
        inputs = take(refit.model.data.first(), slice(0, 1)) if over_training_data else points
        outputs = refit.trained_outputs(inputs)
        mean = torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device) / outputs[..., 0].numel()
        if over_training_data:
            return InSample(mean / refit.model.data.span[1], signed)
        return OutputSums(InSample(mean, signed).slope(outputs), points)


@final
@dataclass(frozen=True)
class Probed:
    """Fits rewarded for random sums of the outputs, which together answer for all evaluation points.

    A fit rewarded for ``ωᵀ f`` answers with the whole vector ``C ω``, ``C = J P⁻¹ Jᵀ`` over all outputs of all points.
    From some random signs Ω the Nyström approximation ``Y (Ωᵀ Y)⁻¹ Yᵀ``, ``Y = C Ω`` (Tropp et al. 2017), which falls
    short of C by a positive semi-definite rest, and is as good as exact where there are more probes than C has
    rank; from others, an unbiased estimate ``mean ω ∘ R ω`` of the diagonal of that rest R (Bekas et al. 2007), with
    its standard error. Where R has more than a twentieth of all variance the log says so: with several outputs the
    few probes of each c × c block of R then make too much of it.

    Args:
        probes: Fits for the Nyström approximation.
        residual: Fits for the diagonal of what it leaves out.

    Raises:
        ConfigError: If there are no probes, or fewer than two for the rest.

    Example:
        >>> Probed(probes=40)
        Probed(probes=40, residual=8)
    """

    probes: int = 24
    residual: int = 8

    def __post_init__(self) -> None:
        check_count("probes", self.probes)
        check_count("residual", self.residual, 2)

    def covariances(self, responder: Responder, points: Inputs) -> tuple[OutputCovariances, Linearity]:
        """Covariances within and between the points, and how far they are to be trusted."""
        omega = self._signs(responder.refit.trained_outputs(points), responder.seed)
        responses, linearity = responder.respond(OutputSums(omega, points), lambda each: each.outputs(points))
        covariance = ProbedCovariance.of(omega, responses.outputs(points), self.probes, linearity.change)
        left_out = covariance.left_out
        if left_out > LEFT_OUT:
            words = "%d probes leave out %.2g %% of the variance, which %d more estimate coarsely: try Probed(%d, %d)"
            logger.warning(words, self.probes, 100 * left_out, self.residual, 4 * self.probes, 2 * self.residual)
        return PointCovariances(Points(points), covariance), linearity

    def weights(self, responder: Responder) -> tuple[Variances, Linearity]:
        """Variances of single weights, estimated with their standard errors."""
        z = self._signs(responder.refit.trained, responder.seed)
        responses, linearity = responder.respond(WeightSums(z), Responses.weights)
        found = responses.weights()[..., None]
        return ProbedCovariance.of(z[..., None], found, self.probes, linearity.change).variances, linearity

    def _signs(self, like: Float[Tensor, "*shape"], seed: int) -> Float[Tensor, "s *shape"]:
        shape = (self.probes + self.residual, *like.shape)
        return probes.rademacher(shape, like=like, generator=torch.Generator().manual_seed(seed))


@final
@dataclass(frozen=True)
class Signs:
    """One fit rewarded for ``‖θ‖₁``, with the signs of the trained weights: for ``weight_uncertainty`` alone.

    Example:
        >>> Signs()
        Signs()
    """

    def weights(self, responder: Responder) -> tuple[Variances, Linearity]:
        """``|P⁻¹ sign(θ̂)|``."""
        signs = responder.refit.trained.sign()[None]
        responses, linearity = responder.respond(WeightSums(signs), Responses.weights)
        value = responses.weights().mT.abs()
        return Variances(value, torch.zeros_like(value), 0), linearity
