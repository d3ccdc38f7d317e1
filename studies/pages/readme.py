"""The first table of the README: the same network and the same held-out images, calibrated in five ways."""

from __future__ import annotations

from collections.abc import Iterator

from studies.pages.calibration import nll
from studies.pages.reports import difference, fixed, grid, row

NETWORKS = {
    "ella_resnet20": "ResNet-20 of the ELLA paper, CIFAR-10",
    "resnet20": "another ResNet-20",
    "resnet32": "ResNet-32",
    "MNIST 300, MLP, 100 epochs": "perceptron, 300 images of MNIST",
    "digits 1200, CNN with batch norm, 10 epochs": "small network with batch norm, digits",
    "generated table, 30% of labels at random, MLP, 10 epochs": "perceptron, a table with wrong labels",
}
"""How the report and the README call a network."""

COLUMNS = {
    "plain": ("none", "plain network"),
    "temperature scaling": ("none", "temperature scaling"),
    "structured vector scaling": ("none", "structured vector scaling"),
    "last layer": ("last layer", "chosen"),
    "KFAC": ("KFAC", "chosen"),
}
"""Posterior and link of a column."""


def tables() -> Iterator[str]:
    """In the order of the page."""
    lines = []
    for network, called in NETWORKS.items():
        scores = [fixed(nll(network, *column), 3).removeprefix("0") for column in COLUMNS.values()]
        found = row("links", summary=True, part=network, posterior="KFAC", link="chosen")
        lines.append([called, *scores, difference(found["difference"], found["difference_stderr"])])
    yield grid({"network": "<"} | dict.fromkeys([*COLUMNS, "KFAC − temperature scaling"], ">"), lines)
