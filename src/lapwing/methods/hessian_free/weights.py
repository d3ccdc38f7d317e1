"""Uncertainty of single weights by refits, and networks without the weights that may as well be zero."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.ground.data.sources import Source, Unpack
from lapwing.ground.errors import ConfigError, DataError, ShapeError, check_kind, check_positive
from lapwing.ground.layout import Layout, Params
from lapwing.ground.precision import wide
from lapwing.ground.progress import working
from lapwing.jacobian.network.modes import undisturbed
from lapwing.jacobian.network.network import Network
from lapwing.jacobian.network.output import Output
from lapwing.jacobian.network.unwrapping import unwrapped
from lapwing.likelihoods import Likelihood
from lapwing.methods.hessian_free.fits import PerPoint, Probed, Signs
from lapwing.methods.hessian_free.probed import Variances
from lapwing.methods.hessian_free.recipe import HessianFree
from lapwing.methods.hessian_free.responses import Linearity
from lapwing.priors import Prior


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
    fits: Signs | Probed | PerPoint | None = None,
    output: Output = None,
    unpack: Unpack | None = None,
    progress: bool | None = None,
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
        output: Which part of what the network returns is the output that the likelihood speaks of: a key, an index or a
            function of it. ``None`` where it returns one tensor, or something with ``logits``.
        unpack: Splits one element of the data into inputs and targets.
        progress: Whether to show a progress bar; ``None`` for after two seconds, in a terminal or notebook.
        **options: Those of ``HessianFree``: ``inner``, ``scale``, ``step``, ``antithetic``, ``centred``, ``weights``,
            ``seed``.

    Raises:
        NumericalError: If the Hessian is not positive definite, or a refit ran away.

    Warns:
        ConvergenceWarning: If the responses are not linear in λ.

    Cost:
        Two fits with ``Signs``, ``2 (probes + residual)`` with ``Probed``, two for each weight with ``PerPoint``; and
        those that choose λ and check the linearity.

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
    with undisturbed(), working("weight uncertainty", progress):
        responder = recipe.responder(model, data, output=output, unpack=unpack)
        with responder.refit.work.shown(progress):
            variances, linearity = choice.weights(responder)
    network = responder.refit.network
    return WeightUncertainty(network.weights, variances, network.uncertain, linearity)


def prune_uncertain(
    model: nn.Module, std: Float[Tensor, " d"], *, times: float = 1.0, share: float | None = None
) -> nn.Module:
    """A copy of a network in which every weight whose interval covers 0 is 0 (McInerney and Kallus 2024, figure 4).

    Args:
        model: The trained network; left exactly as it is.
        std: Standard deviation of each weight that requires a gradient, in the order of ``named_parameters``: such as
            ``weight_uncertainty(...).std``.
        times: The interval is ``θ ± times · std``.
        share: Prune this share of the weights instead, those of smallest ``|θ| / std``.

    Returns:
        The pruned copy.

    Raises:
        ConfigError: If the share is not between 0 and 1, or ``times`` not positive.
        DataError: If a standard deviation is negative or not finite.
        ShapeError: If there is not one a weight.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> _ = nn.init.constant_(model.weight, 0.5)
        >>> prune_uncertain(model, torch.tensor([0.1, 0.6])).weight.tolist()
        [[0.5, 0.0]]

    Source: J. McInerney and N. Kallus, Hessian-Free Laplace in Bayesian Deep Learning, 2024, section 5.
    """
    network = Network.of(unwrapped(model))
    weights = wide(network.weights)
    check_kind("std", std, (Tensor,), "weight_uncertainty(...).std")
    if std.shape != weights.shape:
        raise ShapeError(
            f"a standard deviation for each of {len(weights)} weights", f"{list(std.shape)}", "weight_uncertainty().std"
        )
    if not bool((torch.isfinite(std) & (std >= 0)).all()):
        raise DataError("finite standard deviations that are not negative", "others", "weight_uncertainty().std")
    check_positive("times", times)
    if share is None:
        pruned = weights.abs() <= times * std.to(weights)
    elif 0 <= share <= 1:
        order = (weights.abs() / std.to(weights)).nan_to_num(nan=0.0).argsort()
        pruned = torch.zeros_like(weights, dtype=torch.bool)
        pruned[order[: round(share * len(order))]] = True
    else:
        raise ConfigError("a share between 0 and 1", f"{share}", "share=0.5")
    smaller = copy.deepcopy(model)
    params = dict(unwrapped(smaller).named_parameters())
    with torch.no_grad():
        for name, value in network.layout.unflatten(weights.masked_fill(pruned, 0.0)).items():
            params[name].copy_(value)
    return smaller
