"""What is compared when nobody says what: the plain network, its calibrated self, and four posteriors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor, nn

from lapwing.evaluation.baselines import Map
from lapwing.evaluation.scores import Predictor
from lapwing.ground.data import Data, Source
from lapwing.ground.errors import ConfigError, DataError, DataWarning, UnsupportedError, warn
from lapwing.ground.types import Unpack
from lapwing.likelihoods import Categorical, Gaussian, Likelihood
from lapwing.methods.hessian_free import HessianFree
from lapwing.methods.laplace import Laplace
from lapwing.structures import AFFORDABLE, KFAC, Diagonal, Full
from lapwing.structures.selection import LastLayer

Contender: TypeAlias = Laplace | HessianFree | Predictor
"""What can be compared: a recipe, which is fitted, or a predictor as it is."""


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

    Warns:
        DataWarning: If real targets are all 0 or 1: they are taken as real, and may be meant as labels.
    """
    check_rereadable(train)
    targets = next(iter(Data(train, unpack=unpack))).targets
    if not targets.is_floating_point():
        return Categorical(event_dim=max(targets.ndim - 1, 0))
    if targets.unique().tolist() == [0.0, 1.0]:
        warn(
            f"targets of shape {list(targets.shape)} that are all 0 or 1 are taken as real numbers, by Gaussian(). Try "
            "likelihood=Bernoulli() if each column is a label of its own, or integer labels for Categorical()",
            DataWarning,
        )
    return Gaussian()


def common_likelihood(methods: Iterable[Contender]) -> Likelihood | None:
    """The likelihood of the methods, by which the plain network is scored too; ``None`` without methods.

    Raises:
        ConfigError: If they have likelihoods of several kinds.
    """
    found = [method.likelihood for method in methods]
    kinds = sorted({type(likelihood).__name__ for likelihood in found})
    if len(kinds) > 1:
        raise ConfigError("methods with one kind of likelihood", ", ".join(kinds), f"likelihood={kinds[0]}()")
    return next(iter(found), None)


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
