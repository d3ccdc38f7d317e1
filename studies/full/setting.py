"""What the studies are run on: images of digits and a network that was trained on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from torch import Tensor, nn

from benchmarks.command import Setting
from benchmarks.data import Pair, Split, digits, mnist
from benchmarks.networks import digit_cnn, weight_count
from benchmarks.report import Row
from benchmarks.training import kept_tensors, train

ALPHA = 0.1
"""The source's prior precision."""

TRAINED = 2000
EPOCHS = 15
"""Images the networks are trained on, and passes over them."""

SOURCE = "Brack 2023"


@dataclass(frozen=True)
class Digits:
    """MNIST, or without a data folder scikit-learn's digits; in a hurry few of them."""

    setting: Setting

    @cached_property
    def split(self) -> Split:
        """Training and test images."""
        found = digits() if self.setting.data is None else mnist(self.setting.data)
        return found.head(200, 100) if self.setting.quick else found.head(TRAINED)

    def network(self, *, kernel: Literal[5, 3] = 5) -> nn.Module:
        """The digit CNN, trained on all training images to the MAP estimate under the source's prior precision."""
        x, y = self.split.train
        pixels = 8 if self.setting.data is None else 28
        model = digit_cnn(pixels, kernel=kernel, hidden=8 if self.setting.quick else None)

        def weights() -> dict[str, Tensor]:
            train(model, x, y, epochs=EPOCHS, decay=ALPHA / len(y))
            return model.state_dict()

        model.load_state_dict(kept_tensors(weights, self.setting.kept, "full-cnn", model, EPOCHS, x, y))
        return model.eval()

    def head(self, images: int, quick: int) -> Pair:
        """The training images the curvature is summed over: the first ones, as many as the user asked for."""
        return self.split.head(self.setting.images or (quick if self.setting.quick else images)).train

    def facts(self, model: nn.Module, images: int) -> Row:
        """What the rows of a study have in common."""
        name = "digits" if self.setting.data is None else "MNIST"
        return {"data": name, "weights": weight_count(model), "images": images, "alpha": ALPHA}
