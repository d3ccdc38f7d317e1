"""What the studies of digits share: the images of a seed, a network trained on them, and its posteriors."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import Pair, digits
from lapwing.ground.errors import ConvergenceWarning
from lapwing.posteriors import Posterior
from studies.sampled.networks import Kind, features

SOURCE = "Antorán 2024"
TRAINED = 500
HELD_OUT = 100
"""Training images, and of the others those that a temperature is chosen on."""

START = 1.0
"""Prior precision that searches begin with."""


@dataclass(frozen=True)
class Images:
    """Images of a seed as a network reads them, and their labels.

    Args:
        train: To train on.
        held_out: To choose a temperature on.
        test: To score on.
    """

    train: Pair
    held_out: Pair
    test: Pair

    @classmethod
    def drawn(cls, kind: Kind, seed: int, setting: Setting) -> Images:
        """A shuffle of scikit-learn's digits; in a hurry few of them."""
        split = digits(seed, TRAINED)
        if setting.quick:
            split = split.head(60, 60)
        held_out, test = split.parted(20 if setting.quick else HELD_OUT)
        return cls(kind.images(split.train), kind.images(held_out), kind.images(test))


def trained(kind: Kind, images: Images, seed: int, setting: Setting) -> nn.Module:
    """The network of a seed."""
    return kind.trained(images.train, seed, 2 if setting.quick else setting.epochs)


def exact(model: nn.Module, data: Pair, *, biases: bool = True) -> Posterior:
    """The posterior with the whole covariance of the weights."""
    return fitted(model, data, lw.Isotropic(START), biases=biases, structure=lw.Full(view="weights"))


def fitted(model: nn.Module, data: Pair, prior: lw.Prior, *, biases: bool = True, **choices: Any) -> Posterior:
    """The posterior of any structure, in the weights that are features.

    Args:
        model: The network.
        data: Its training data.
        prior: The prior.
        biases: Whether biases are features.
        **choices: Structure and curvature, as ``lw.Laplace`` takes them.
    """
    with quietly():
        return recipe(model, prior, biases=biases, **choices).fit(model, data)


def recipe(model: nn.Module, prior: lw.Prior, *, biases: bool = True, **choices: Any) -> lw.Laplace:
    """The recipe of a posterior in the weights that are features; arguments as those of ``fitted``."""
    return lw.Laplace(lw.Categorical(), prior=prior, weights=features(model, biases=biases), **choices)


@contextmanager
def quietly() -> Generator[None]:
    """Without warnings of searches that end at their most steps, which the rows show."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield
