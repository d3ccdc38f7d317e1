"""How far the evidence at the weights is from that at the mode as training goes on (Antorán 2024, figure 5.8).

A network with norms over a batch and one without are trained for more and more epochs, at a rate that stays, so that
all are steps of one path. Of each the single precision of largest evidence is chosen at its weights and at the mode of
its tangent model, and both posteriors predict the same test images: the distance is the 2-Wasserstein distance of their
Gaussian logits, which have the same means, averaged over the images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.report import Row, curve, figure, grouped
from benchmarks.tasks import moments, probabilities, scored
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.metrics import gaussian_wasserstein
from studies.sampled.networks import KINDS
from studies.sampled.setting import Images, exact, quietly
from studies.sampled.table import WHERE

NORMALISED = ("CNN", "ResNet", "Pre-ResNet")
COMPARED = ("ResNet", "FixUp")
"""Kinds with norms over a batch, and those that are trained where none is asked for."""

EPOCHS = (5, 10, 20, 40, 80, 160, 320)
HURRIED = (1, 2)
TESTED = 200
COLUMNS = ("wasserstein", "at_weights", "at_mode", "square_norm", "nll", "nll_weights", "nll_mode")


def rows(setting: Setting) -> Iterator[Row]:
    """Every network, seed and number of epochs."""
    for name in setting.among(KINDS, COMPARED):
        kind = KINDS[name]
        for seed in setting.repeats:
            images = Images.drawn(kind, seed, setting)
            for epochs in HURRIED if setting.quick else EPOCHS:
                model = kind.trained(images.train, seed, epochs, "constant")
                yield {"part": name, "epochs": epochs, "seed": seed} | compared(model, images)


def compared(model: nn.Module, images: Images) -> Row:
    """The two precisions of a network, and the distance of the posteriors that have them.

    Args:
        model: The network.
        images: Of its seed.
    """
    x, labels = images.test
    posterior = exact(model, images.train)
    with quietly():
        weights = lw.tune(posterior, WHERE["weights"])
        mode = lw.tune(posterior, WHERE["mode"])
    at_weights, at_mode = moments(posterior, x[:TESTED], [weights, mode])
    plain = PlainNetwork(model, lw.Categorical())
    row: Row = {
        "wasserstein": float(gaussian_wasserstein(at_weights, at_mode).mean()),
        "at_weights": float(weights.prior_precisions),
        "at_mode": float(mode.prior_precisions),
        "square_norm": float(posterior.network.weights.square().sum()),
        "nll": scored(probabilities(plain, x), labels, "nll")["nll"],
    }
    for place, tuned in (("weights", weights), ("mode", mode)):
        row[f"nll_{place}"] = scored(probabilities(tuned, x, link="probit"), labels, "nll")["nll"]
    return row


def draw(found: Sequence[Row]) -> Any:
    """The distance against the epochs, a line a network."""
    made = figure(5.5, 3.8, 1)
    panel = made.axes[0]
    for name, own in grouped((row for row in found if row.get("summary")), "part").items():
        label = f"{name}, {'normalised' if name in NORMALISED else 'not normalised'}"
        curve(panel, own, "epochs", "wasserstein", label=label)
    panel.set(xscale="log", xlabel="epochs of training", ylabel="2-Wasserstein distance of logits")
    panel.legend(frameon=False)
    return made
