"""Which fits: one a point, a few for all points, or random ones; and what their responses tell."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal, TypeAlias, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground import probes
from lapwing.ground.data import chunks, count, take
from lapwing.ground.errors import UnsupportedError, check_count, check_option
from lapwing.ground.types import Inputs
from lapwing.likelihoods import Gaussian
from lapwing.methods.hessian_free.inner import Linearity
from lapwing.methods.hessian_free.posterior import Amortised, Answers, Points, ProbedTable, Table
from lapwing.methods.hessian_free.probed import ProbedCovariance, Variances, semidefinite
from lapwing.methods.hessian_free.refit import Refit
from lapwing.methods.hessian_free.regularisers import PIECE, Augmented, InSample, OutputSums, Regulariser, WeightSums
from lapwing.methods.hessian_free.responses import Perturbation, Responses

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

    def answers(self, refit: Refit, perturbation: Perturbation, points: Inputs, seed: int) -> tuple[Answers, Linearity]:
        """Covariances of the outputs at the points, and how far they are to be trusted."""
        blocks, checks = list[Tensor](), list[Linearity]()
        for _, inputs in chunks(points, self.group):
            outputs = refit.trained_outputs(inputs)
            n, c = outputs.shape[0] * outputs[0, ..., 0].numel(), outputs.shape[-1]
            omega = torch.eye(n * c, dtype=torch.float64, device=outputs.device).view(n * c, *outputs.shape)
            responses = perturbation.respond(
                refit, OutputSums(inputs, omega), lambda each, inputs=inputs: each.outputs(inputs)
            )
            found = responses.outputs(inputs).view(n, c, n, c).diagonal(dim1=0, dim2=2).movedim(-1, 0)
            blocks.append(semidefinite(0.5 * (found + found.mT)).view(*outputs.shape, c))
            checks.append(responses.linearity)
        return Table(Points(points), torch.cat(blocks)), Linearity.join(checks)

    def weights(self, refit: Refit, perturbation: Perturbation, seed: int) -> tuple[Variances, Linearity]:
        """Variances of single weights by a fit for each."""
        eye = torch.eye(refit.network.size, dtype=torch.float64, device=refit.trained.device)
        parts = [(z, _weights(refit, perturbation, z)) for z in eye.split(self.group)]
        value = torch.cat([(found.weights() * z).sum(1) for z, found in parts])[:, None]
        return Variances(value, torch.zeros_like(value), 0), Linearity.join([found.linearity for _, found in parts])


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
            mini-batch by mini-batch (28), ``"augmented"`` the mean over the training data by shifted targets (29),
            for Gaussian noise.

    Raises:
        ConfigError: If the objective is none of these.

    Example:
        >>> PreTrained("augmented")
        PreTrained(objective='augmented')
    """

    objective: Objective = "mean"

    def __post_init__(self) -> None:
        check_option("objective", self.objective, get_args(Objective))

    def answers(self, refit: Refit, perturbation: Perturbation, points: Inputs, seed: int) -> tuple[Answers, Linearity]:
        """Covariances with the mean output at any input, and how far they are to be trusted."""
        few = take(points, slice(0, min(count(points), PIECE)))  # enough to see whether a response is linear
        found = perturbation.respond(refit, self._rewarded(refit, points), lambda each: each.outputs(few))
        return Amortised(found), found.linearity

    def _rewarded(self, refit: Refit, points: Inputs) -> Regulariser:
        """The functionals, one for each output."""
        if self.objective in ("mean", "absolute"):
            outputs = refit.trained_outputs(points)
            c = outputs.shape[-1]
            signs = outputs.sign() if self.objective == "absolute" else torch.ones_like(outputs)
            own = torch.eye(c, dtype=outputs.dtype, device=outputs.device).view(c, *(1,) * (outputs.ndim - 1), c)
            return OutputSums(points, own * signs / outputs[..., 0].numel())
        like = refit.trained_outputs(take(next(iter(refit.batches)).inputs, slice(0, 1)))
        positions, likelihood = refit.examples * like[0, ..., 0].numel(), refit.model.likelihood
        if self.objective == "in_sample":
            return InSample(positions, like.shape[-1])
        if not isinstance(likelihood, Gaussian):
            raise UnsupportedError(
                "Gaussian noise, whose loss is a square to be completed",
                type(likelihood).__name__,
                'PreTrained("mean") with the training inputs as points',
            )
        return Augmented(positions, 1 / (likelihood.weight * likelihood.precisions(like).double()))


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

    def answers(self, refit: Refit, perturbation: Perturbation, points: Inputs, seed: int) -> tuple[Answers, Linearity]:
        """Covariances within and between the points, and how far they are to be trusted."""
        omega = self._signs(refit.trained_outputs(points), seed)
        responses = perturbation.respond(refit, OutputSums(points, omega), lambda each: each.outputs(points))
        found = ProbedCovariance.of(omega, responses.outputs(points), self.probes, responses.linearity.change)
        if found.left_out > LEFT_OUT:
            words = "%d probes leave out %.2g %% of the variance, which %d more estimate coarsely: try Probed(%d, %d)"
            more = (4 * self.probes, 2 * self.residual)
            logger.warning(words, self.probes, 100 * found.left_out, self.residual, *more)
        return ProbedTable(Points(points), found), responses.linearity

    def weights(self, refit: Refit, perturbation: Perturbation, seed: int) -> tuple[Variances, Linearity]:
        """Variances of single weights, estimated with their standard errors."""
        z = self._signs(refit.trained, seed)
        found = _weights(refit, perturbation, z)
        change = found.linearity.change
        covariance = ProbedCovariance.of(z[..., None], found.weights()[..., None], self.probes, change)
        return covariance.variances, found.linearity

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

    def weights(self, refit: Refit, perturbation: Perturbation, seed: int) -> tuple[Variances, Linearity]:
        """``|P⁻¹ sign(θ̂)|``."""
        found = _weights(refit, perturbation, refit.trained.sign()[None])
        value = found.weights().mT.abs()
        return Variances(value, torch.zeros_like(value), 0), found.linearity


def _weights(refit: Refit, perturbation: Perturbation, z: Float[Tensor, "s d"]) -> Responses:
    """Fits rewarded for ``zᵀ θ``."""
    return perturbation.respond(refit, WeightSums(z), Responses.weights)
