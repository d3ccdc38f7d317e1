"""The full covariance of the demo's own network is within what a comparison tries."""

from __future__ import annotations

import torch

from demo.digits import CLASSES, UNSEEN, network
from lapwing.comparison import compare, recipes
from lapwing.likelihoods import Categorical


def test_the_demos_network_gets_its_full_covariance() -> None:
    classes = CLASSES - UNSEEN
    x, y = torch.rand(300, 1, 8, 8), torch.arange(300) % classes
    tried = {"full": recipes(Categorical())["full"]}
    row = compare(network(classes), [(x, y)], [(x, y)], methods=tried).row("full", "default")
    assert row.predictor is not None, row.note
