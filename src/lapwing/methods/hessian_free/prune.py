"""Networks without the weights that may as well be zero."""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lapwing.ground.errors import ConfigError, DataError, ShapeError, check_positive
from lapwing.jacobian.network.network import Network, unwrapped


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
    weights = network.weights
    if std.shape != weights.shape:
        raise ShapeError(
            f"a standard deviation for each of {len(weights)} weights", f"{list(std.shape)}", "weight_uncertainty().std"
        )
    if not bool((torch.isfinite(std) & (std >= 0)).all()):
        raise DataError("finite standard deviations that are not negative", "others", "weight_uncertainty().std")
    check_positive("times", times)
    pruned = uncertain(weights.double(), std.to(weights.device).double(), times, share)
    smaller = copy.deepcopy(model)
    params = dict(unwrapped(smaller).named_parameters())
    with torch.no_grad():
        for name, value in network.layout.unflatten(weights.masked_fill(pruned, 0.0)).items():
            params[name].copy_(value)
    return smaller


def uncertain(weights: Float[Tensor, " d"], std: Float[Tensor, " d"], times: float, share: float | None) -> Tensor:
    """Which weights go: those within ``times · std`` of 0, or a share of them, the most uncertain first.

    Raises:
        ConfigError: If the share is not between 0 and 1.
    """
    if share is None:
        return weights.abs() <= times * std
    if not 0 <= share <= 1:
        raise ConfigError("a share between 0 and 1", f"{share}", "share=0.5")
    ratios = weights.abs() / std
    ratios = torch.where(torch.isnan(ratios), 0.0, ratios)
    gone = torch.zeros_like(ratios, dtype=torch.bool)
    gone[ratios.argsort()[: round(share * len(ratios))]] = True
    return gone
