"""The full covariance of the demo's own network is within what a comparison tries."""

from __future__ import annotations

import torch

from lapwing.comparison import recipes
from lapwing.demo.digits import CLASSES, UNSEEN, network
from lapwing.likelihoods import Categorical
from lapwing.linalg import Dense
from lapwing.posteriors import WeightPosterior


def test_the_demos_network_gets_its_full_covariance() -> None:
    classes = CLASSES - UNSEEN
    x, y = torch.rand(300, 1, 8, 8), torch.arange(300) % classes
    posterior = recipes(Categorical())["full"].fit(network(classes), (x, y))
    assert isinstance(posterior, WeightPosterior) and isinstance(posterior.precision_operator, Dense)
    assert posterior.network.size == sum(value.numel() for value in network(classes).parameters())
