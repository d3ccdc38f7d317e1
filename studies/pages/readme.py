"""The tables of the README: one network and one set of held-out images, calibrated in five ways; and what fits cost."""

from __future__ import annotations

import re
from collections.abc import Iterator

from benchmarks.report import GIB, Row
from studies.pages.calibration import nll
from studies.pages.reports import NOTHING, difference, fixed, grid, grouped_digits, row, significant

NETWORKS = {
    "ella_resnet20": "ResNet-20 of Deng et al. (2022), CIFAR-10",
    "resnet20": "ResNet-20 trained by others, CIFAR-10",
    "resnet32": "ResNet-32, CIFAR-10",
    "MNIST 300, MLP, 100 epochs": "perceptron, 300 images of MNIST",
    "MNIST 1000, CNN, 30 epochs": "CNN, 1000 images of MNIST",
    "digits 150, CNN, 200 epochs": "CNN, 150 small digits",
    "digits 300, MLP, 50 epochs": "perceptron, 300 small digits",
    "digits 1200, CNN with batch norm, 10 epochs": "CNN with batch norm, 1200 small digits",
    "breast cancer 250, MLP, 20 epochs": "perceptron, breast cancer, 20 epochs",
    "breast cancer 250, MLP, 100 epochs": "perceptron, breast cancer, 100 epochs",
    "wine 80, MLP, 100 epochs": "perceptron, 80 wines",
    "generated table, 0% of labels at random, MLP, 100 epochs": "perceptron, generated table, 100 epochs",
    "generated table, 30% of labels at random, MLP, 10 epochs": "the same, 30 % of labels wrong, 10 epochs",
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


FITS = {
    "lapwing, last layer": ("ours", "last layer"),
    "lapwing, `Diagonal()`": ("ours", "diagonal"),
    "lapwing, `KFAC()`": ("ours", "kfac"),
    "laplace-torch, diagonal": ("laplace-torch", "diagonal"),
    "laplace-torch, KFAC": ("laplace-torch", "kfac"),
}
"""Library and structure of a line of the second table."""


def tables() -> Iterator[str]:
    """In the order of the page."""
    yield calibrated()
    yield fits()


def calibrated() -> str:
    """NLL of the same networks by each way of calibrating them."""
    lines = []
    for network, called in NETWORKS.items():
        scores = [fixed(nll(network, *column), 3).removeprefix("0") for column in COLUMNS.values()]
        found = row("links", summary=True, part=network, posterior="KFAC", link="chosen")
        lines.append([called, *scores, difference(found["difference"], found["difference_stderr"])])
    return grid({"network": "<"} | dict.fromkeys([*COLUMNS, "KFAC − temperature scaling"], ">"), lines)


def fits() -> str:
    """What a fit to a ResNet-18 costs, here and in laplace-torch."""
    lines = []
    for called, (side, structure) in FITS.items():
        found = row("wide", network="resnet18", side=side, structure=structure, step="fit")
        if found["seconds"] is None:
            lines.append([called, unfinished(found), NOTHING, NOTHING])
            continue
        numbers = [significant(found["seconds"]), significant(found["passes"]), grouped_digits(found["peak_mib"])]
        lines.append([called, *numbers])
    heads = {"a ResNet-18, 11 million weights, 500 images": "<", "fit, s": ">", "in passes": ">", "memory, MiB": ">"}
    return grid(heads, lines)


def unfinished(found: Row) -> str:
    """Why a fit has no seconds, in a few words.

    Args:
        found: The row of a fit that was ended, or for which there was no memory.
    """
    late = re.search(r"stopped after (\d+) s", found["note"])
    if late:
        return f"not done after {late[1]}"
    asked = re.search(r"allocate (\d+) bytes", found["note"])
    if asked:
        return f"no memory: asked for {int(asked[1]) / GIB:.1f} GiB more"
    raise LookupError(f"a fit without seconds says {found['note']!r}")
