"""What is compared when nobody says what: the plain network, its calibrated self, and four posteriors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from lapwing.baselines import Map
from lapwing.data import Data, Source
from lapwing.errors import DataError, UnsupportedError
from lapwing.laplace import Laplace
from lapwing.likelihoods import Categorical, Gaussian, Likelihood
from lapwing.selection import LastLayer
from lapwing.structures import AFFORDABLE, KFAC, Diagonal, Full
from lapwing.types import Unpack


def recipes(likelihood: Likelihood) -> dict[str, Laplace]:
    """The posteriors a comparison fits by default: last layer, diagonal, KFAC, and full where ``Auto`` would afford it.

    Args:
        likelihood: p(y | f).
    """
    return {
        "last layer": Laplace(likelihood, weights=LastLayer()),
        "diagonal": Laplace(likelihood, structure=Diagonal()),
        "KFAC": Laplace(likelihood, structure=KFAC()),
        "full": Laplace(likelihood, structure=Full(max_seconds=AFFORDABLE)),
    }


def likelihood_of(train: Source, unpack: Unpack | None = None) -> Likelihood:
    """Categorical for integer targets, one label a position; Gaussian for real ones.

    Args:
        train: The training data, of which the first batch is read.
        unpack: Splits one element of a loader into inputs and targets.

    Raises:
        DataError: If the data can be read only once, or are empty.
    """
    check_rereadable(train)
    targets = next(iter(Data(train, unpack=unpack))).targets
    return Gaussian() if targets.is_floating_point() else Categorical(event_dim=max(targets.ndim - 1, 0))


def check_rereadable(data: Source | None) -> None:
    """Refuses an iterator, which is spent after one reading.

    Raises:
        DataError: If it is one.
    """
    if isinstance(data, Iterator):
        raise DataError(
            "data that can be read again and again", f"a {type(data).__name__}", "list(data), or its loader"
        )


def plain(model: nn.Module, likelihood: Likelihood, train: Source, unpack: Unpack | None) -> Map:
    """The network at its word; Gaussian noise is that of its training residuals, as maximum likelihood has it."""
    network = Map(model, likelihood)
    return _with_noise_of(network, train, unpack) if isinstance(likelihood, Gaussian) else network


def calibrated(network: Map, validation: Source, unpack: Unpack | None) -> Map:
    """The network with one number chosen on held-out data: a temperature for classes, the noise for real targets.

    Raises:
        UnsupportedError: If the likelihood has no such number.
    """
    if isinstance(network.likelihood, Gaussian):
        return _with_noise_of(network, validation, unpack)
    if isinstance(network.likelihood, Categorical):
        return network.calibrated(validation, unpack=unpack)
    raise UnsupportedError(
        "Categorical or Gaussian, to calibrate the plain network",
        type(network.likelihood).__name__,
        "no validation data",
    )


def _with_noise_of(network: Map, data: Source, unpack: Unpack | None) -> Map:
    """The network with the noise precision that its residuals on some data make most likely, one for all outputs."""
    like = next(network.model.parameters(), torch.zeros(()))
    residuals: list[Tensor] = []
    for batch in Data(data, like=like.detach(), unpack=unpack):
        outputs = network.outputs(batch.inputs)
        residuals.append((network.likelihood.canonical_targets(outputs, batch.targets) - outputs).flatten())
    variance = float(torch.cat(residuals).double().square().mean())
    if variance == 0.0:
        raise DataError("residuals that are not all zero", "a perfect fit", "data the network was not trained on")
    return replace(network, likelihood=Gaussian(1.0 / variance))
