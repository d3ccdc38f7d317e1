"""Uncertainty of single weights by refits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.ground import probes
from lapwing.ground.data import Source
from lapwing.ground.errors import check_kind
from lapwing.ground.modes import undisturbed
from lapwing.ground.tree import Layout
from lapwing.ground.types import Params, Unpack
from lapwing.likelihoods import Likelihood
from lapwing.methods.hessian_free.choices import PerPoint, Probed, Signs
from lapwing.methods.hessian_free.linearity import Linearity
from lapwing.methods.hessian_free.probed import ProbedCovariance, Variances
from lapwing.methods.hessian_free.recipe import HessianFree
from lapwing.methods.hessian_free.refit import Refit
from lapwing.methods.hessian_free.regularisers import WeightSums
from lapwing.methods.hessian_free.responses import Perturbation
from lapwing.priors import Prior

WeightFits: TypeAlias = Signs | Probed | PerPoint
"""Which fits."""


@final
@dataclass(frozen=True, eq=False)
class WeightUncertainty:
    """How uncertain each weight is.

    Args:
        weights: The trained weights ``[d]``.
        variances: Of each, as ``[d, 1]``; unbiased where they come from probes, with their standard errors.
        layout: Names of the weights and their order.
        linearity: How much of the responses is not linear in λ, and what the fits took.
    """

    weights: Float[Tensor, " d"]
    variances: Variances
    layout: Layout
    linearity: Linearity

    @property
    def std(self) -> Float[Tensor, " d"]:
        """Standard deviation of each weight; an estimated variance below 0 counts as 0."""
        return self.variances.value[:, 0].clamp(min=0.0).sqrt().to(self.weights)

    def named(self) -> Params:
        """Standard deviations by parameter."""
        return self.layout.unflatten(self.std)


def weight_uncertainty(
    model: nn.Module,
    data: Source,
    likelihood: Likelihood,
    *,
    prior: Prior | None = None,
    fits: WeightFits | None = None,
    unpack: Unpack | None = None,
    progress: bool = False,
    **options: Any,
) -> WeightUncertainty:
    """Variances of single weights from refits (McInerney and Kallus 2024, equations 31 and 32).

    A refit rewarded for ``zᵀ θ`` moves the weights by ``λ P⁻¹ z``. ``Signs()``, the source's: ``z = sign(θ̂)``, and
    the answer is ``|P⁻¹ sign(θ̂)|``: a signed sum over a row of the covariance, *not* its diagonal. ``Probed()``
    estimates the diagonal from random signs, with standard errors; ``PerPoint()`` finds it by a fit for each weight.

    Args:
        model: The trained network; left exactly as it is.
        data: The training data.
        likelihood: p(y | f).
        prior: p(θ); ``Isotropic()`` if ``None``.
        fits: Which fits; ``Signs()`` if ``None``.
        unpack: Splits one element of the data into inputs and targets.
        progress: Whether to show a progress bar.
        **options: Those of ``HessianFree``: ``inner``, ``scale``, ``step``, ``antithetic``, ``centred``, ``weights``,
            ``seed``.

    Raises:
        NumericalError: If the Hessian is not positive definite, or a refit ran away.

    Warns:
        ConvergenceWarning: If the responses are not linear in λ.

    Cost:
        Two fits with ``Signs``, ``2 (probes + residual)`` with ``Probed``, two for each weight with ``PerPoint``; and
        up to four that check the linearity.

    Example:
        >>> import lapwing as lw
        >>> x = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]
        >>> model = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).double()
        >>> weight_uncertainty(model, (x, x.sin()), lw.Gaussian(1.0), prior=lw.Isotropic(20.0)).std.shape
        torch.Size([10])
    """
    choice = Signs() if fits is None else fits
    check_kind("fits=", choice, (Signs, Probed, PerPoint), "Signs() or Probed()")
    recipe = HessianFree(likelihood, **({} if prior is None else {"prior": prior}), **options)
    with undisturbed():
        refit = recipe.refit(model, data, unpack=unpack)
        with refit.passes.shown(progress):
            variances, linearity = _variances(refit, recipe.perturbation, choice, recipe.seed)
    return WeightUncertainty(refit.network.weights, variances, refit.network.uncertain, linearity)


def _variances(refit: Refit, perturbation: Perturbation, choice: WeightFits, seed: int) -> tuple[Variances, Linearity]:
    trained = refit.trained
    match choice:
        case Signs():
            found, linearity = _responses(refit, perturbation, trained.sign()[None])
            return Variances(found.mT.abs(), torch.zeros_like(found.mT), 0), linearity
        case Probed():
            generator = torch.Generator().manual_seed(seed)
            shape = (choice.probes + choice.residual, len(trained))
            z = probes.rademacher(shape, like=trained, generator=generator)
            found, linearity = _responses(refit, perturbation, z)
            covariance = ProbedCovariance.of(z[..., None], found[..., None], choice.probes, linearity.change)
            return covariance.variances, linearity
        case PerPoint():
            parts, linearity = list[Tensor](), None
            for z in torch.eye(len(trained), dtype=trained.dtype, device=trained.device).split(choice.group):
                found, part = _responses(refit, perturbation, z)
                parts.append((found * z).sum(1))
                linearity = part if linearity is None else linearity.join(part)
            assert linearity is not None
            value = torch.cat(parts)[:, None]
            return Variances(value, torch.zeros_like(value), 0), linearity


def _responses(
    refit: Refit, perturbation: Perturbation, z: Float[Tensor, "s d"]
) -> tuple[Float[Tensor, "s d"], Linearity]:
    """``P⁻¹ z`` of each z."""
    responses = perturbation.respond(refit, WeightSums(z), lambda each: each.weights())
    return responses.weights(), responses.linearity
