"""What the studies are run on, and how much of them is run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torch import Tensor, nn

from benchmarks.data import Split, mnist
from benchmarks.networks import weight_count
from benchmarks.training import digits
from studies.sampled.trained import Size, inputs, trained


@dataclass(frozen=True)
class Setting:
    """The options of the command line.

    Args:
        data: The data folder; ``None`` leaves out what needs it.
        quick: Whether seconds must do: few examples, small networks, few cases. Its numbers say nothing.
        seeds: How often a study is repeated.
        kept: Folder of trained networks, shared by the studies; ``None`` trains anew.
        train: Training examples the curvature is summed over; ``None`` for the study's own choice.
        only: Of what a study goes through by name (families, sizes, data, networks) only these; empty for all.
        epochs: Passes over the data a network is trained for; ``None`` for 90 over digits, 15 over MNIST.
    """

    data: Path | None = None
    quick: bool = False
    seeds: int = 5
    kept: Path | None = None
    train: int | None = None
    only: tuple[str, ...] = ()
    epochs: int | None = None

    @property
    def repeats(self) -> range:
        """The seeds."""
        return range(2 if self.quick else self.seeds)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the data."""
        return self.among(("digits",) if self.data is None else ("digits", "mnist"))

    def among(self, choices: tuple[str, ...]) -> tuple[str, ...]:
        """Those that were asked for, all where none of them was."""
        return tuple(name for name in choices if name in self.only) or choices

    def split(self, name: str) -> Split:
        """Images of digits, 8 × 8 from scikit-learn or 28 × 28 from MNIST."""
        return self._splits[name].head(120, 60) if self.quick else self._splits[name]

    @cached_property
    def _splits(self) -> dict[str, Split]:
        found = {"digits": digits()}
        return found if self.data is None else found | {"mnist": mnist(self.data)}

    def task(self, name: str, family: str, size: Size, seed: int, images: int, tested: int = 10_000) -> Task:
        """A network trained on all training images, the first of them behind its curvature, and test images."""
        data = inputs(family, self.split(name))
        epochs = 3 if self.quick else self.epochs or {"digits": 90, "mnist": 15}[name]
        model = trained(family, size, data, name=name, epochs=epochs, seed=seed, kept=self.kept)
        count = images if self.train is None else self.train
        head = data.head(12 if self.quick else count, tested)
        weight = len(data.y_train) / len(head.y_train)
        return Task(model, (head.x_train, head.y_train), (head.x_test, head.y_test), weight)


@dataclass(frozen=True)
class Task:
    """A trained network, what its curvature is summed over, what scores it, and for how many images one stands."""

    model: nn.Module
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    weight: float = 1.0

    @property
    def weights(self) -> int:
        """How many there are."""
        return weight_count(self.model)
