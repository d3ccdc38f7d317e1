"""What the studies are run on: digits and a trained network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from torch import nn

from benchmarks.command import Setting
from benchmarks.data import Pair, Split, digits, mnist
from benchmarks.networks import digit_cnn, weight_count
from benchmarks.report import Row
from benchmarks.training import train

ALPHA = 0.1
"""The source's prior precision."""


@dataclass(frozen=True)
class Digits:
    """MNIST, or without a data folder scikit-learn's digits; in a hurry few of them."""

    setting: Setting

    @cached_property
    def split(self) -> Split:
        """Training and test images on the device."""
        found = digits() if self.setting.data is None else mnist(self.setting.data)
        return (found.head(200, 100) if self.setting.quick else found).to(self.setting.device)

    def network(self, *, kernel: Literal[5, 3] = 5, alpha: float = ALPHA) -> nn.Module:
        """The digit CNN, trained on all training images to the MAP estimate under the prior precision ``alpha``."""
        quick, (x, y) = self.setting.quick, self.split.train
        model = digit_cnn(8 if self.setting.data is None else 28, kernel=kernel, hidden=8 if quick else None)
        return train(model.to(self.setting.device), x, y, epochs=20, decay=alpha / len(y))

    def head(self, images: int, quick: int) -> Pair:
        """The training images the curvature is summed over: the first ones, as many as the user asked for."""
        return self.split.head(self.setting.images or (quick if self.setting.quick else images)).train

    def facts(self, model: nn.Module, images: int) -> Row:
        """What the rows of a study have in common."""
        name = "digits" if self.setting.data is None else "mnist"
        return {"data": name, "weights": weight_count(model), "images": images, "alpha": ALPHA}
