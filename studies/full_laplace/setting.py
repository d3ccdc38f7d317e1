"""What the studies are run on: data, a trained network, a posterior."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

import lapwing as lw
from benchmarks.data import Split, mnist
from benchmarks.training import digit_cnn, digits, train
from lapwing.linear.solvers import CG, Perturb, Root
from lapwing.posteriors import MatrixFreePosterior

ALPHA = 0.1
"""The source's prior precision."""


@dataclass(frozen=True)
class Setting:
    """Where data come from, and how much of a study is run.

    Args:
        data: The data folder, for MNIST; ``None`` for scikit-learn's digits.
        quick: Whether seconds must do: few images, a small network, few cases. Its numbers say nothing.
        device: ``"cpu"`` or ``"cuda"``.
        images: Training images the curvature is summed over; ``None`` for the study's own choice.
    """

    data: Path | None = None
    quick: bool = False
    device: str = "cpu"
    images: int | None = None

    @property
    def name(self) -> str:
        """Of the data."""
        return "digits" if self.data is None else "mnist"

    @cached_property
    def split(self) -> Split:
        """Training and test images on the device."""
        found = digits() if self.data is None else mnist(self.data)
        found = found.head(200, 100) if self.quick else found
        parts = (found.x_train, found.y_train, found.x_test, found.y_test)
        return Split(*(part.to(self.device) for part in parts))

    def network(self, *, kernel: Literal[5, 3] = 5, alpha: float = ALPHA) -> nn.Module:
        """The digit CNN, trained on all training images to the MAP estimate under the prior precision ``alpha``."""
        pixels: Literal[28, 8] = 8 if self.data is None else 28
        model = digit_cnn(pixels, kernel=kernel, hidden=8 if self.quick else None).to(self.device)
        x, y = self.split.x_train, self.split.y_train
        return train(model, x, y, epochs=60 if self.quick else 20, weight_decay=alpha / len(y))

    def head(self, images: int) -> tuple[Float[Tensor, "n 1 h w"], Int[Tensor, " n"]]:
        """The training images the curvature is summed over: the first ones, as many as the user asked for."""
        count = images if self.images is None else self.images
        return self.split.x_train[:count], self.split.y_train[:count]


def matrix_free(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    *,
    alpha: float = ALPHA,
    solver: CG | None = None,
    sqrt: Root | None = None,
) -> MatrixFreePosterior:
    """The posterior by products alone."""
    structure = lw.MatrixFree(solver or CG(), sqrt or Perturb())
    posterior = lw.Laplace(lw.Categorical(), prior=lw.Isotropic(alpha), structure=structure).fit(model, data)
    assert isinstance(posterior, MatrixFreePosterior)
    return posterior
