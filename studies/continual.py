"""Learning one task after another without forgetting: a posterior as the prior of the next task.

    python -m studies.continual --json FILE [--quick] [--seeds N]

The handwritten digits of scikit-learn in five tasks, 0 or 1, 2 or 3, and so on, one after the other. One network learns
them all, with two outputs for each task and all other weights in common: what it learns of a task overwrites what the
last one left. It is told nothing but the data of the task at hand, and what the prior says of those before. How many
times earlier data count Ritter et al. 2018 choose by validation; here it is once, as Bayes says, or ten times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.data import digits
from benchmarks.networks import perceptron
from benchmarks.report import Row, timed
from benchmarks.training import train
from lapwing.structures import Structure

TASKS = 5
PRECISION = 5.0
"""Of the prior before any data."""


@dataclass(frozen=True)
class Memory:
    """How earlier tasks are remembered.

    Args:
        structure: Of the posterior that is the next prior; ``None`` for its mean alone.
        times: How many times the data count in it.
    """

    structure: Structure | None
    times: float = 1.0


METHODS: dict[str, Memory | None] = {
    "trained on": None,
    "mean alone": Memory(None),
    "diagonal": Memory(lw.Diagonal()),
    "KFAC": Memory(lw.KFAC()),
    "EKFAC": Memory(lw.EKFAC()),
    "diagonal, data count ten times": Memory(lw.Diagonal(), 10.0),
    "KFAC, data count ten times": Memory(lw.KFAC(), 10.0),
    "EKFAC, data count ten times": Memory(lw.EKFAC(), 10.0),
}

ALL = "all tasks at once"

COLUMNS = ("first", "mean", "last", "seconds")


def rows(setting: Setting) -> Iterator[Row]:
    """Every method on the same tasks, from the same weights."""
    epochs = 3 if setting.quick else (setting.epochs or 30)
    for seed in setting.repeats:
        learned, held = tasks(seed)
        for name in setting.among((*METHODS, ALL)):
            model, seconds = timed(lambda name=name, learned=learned, seed=seed: taught(name, learned, epochs, seed))
            right = [accuracy(model, task) for task in held]
            scores = {"first": right[0], "mean": sum(right) / TASKS, "last": right[-1], "seconds": seconds}
            yield {"part": "split digits", "seed": seed, "method": name} | scores | {"each": right}


def taught(name: str, learned: Sequence[Task], epochs: int, seed: int) -> nn.Module:
    """The network after all tasks.

    Args:
        name: The method.
        learned: The data of each task.
        epochs: Passes over those of each.
        seed: Of weights and batches.
    """
    model = perceptron(64, 50, 50, 2 * TASKS, seed=seed)
    prior: lw.Prior | None = lw.Isotropic(PRECISION)
    if name == ALL:
        together = Task(torch.cat([task.x for task in learned]), torch.cat([task.y for task in learned]), None)
        return trained(model, together, prior, epochs, seed)
    memory = METHODS[name]
    for task in learned:
        model = trained(model, task, prior, epochs, seed)
        prior = next_prior(model, task, prior, memory)
    return model


def next_prior(model: nn.Module, task: Task, prior: lw.Prior | None, memory: Memory | None) -> lw.Prior | None:
    """What is remembered of a task and of those before; ``None`` for nothing."""
    if prior is None or memory is None:
        return None
    if memory.structure is None:
        return lw.Isotropic(PRECISION, mean=dict(model.named_parameters()))
    recipe = lw.Laplace(lw.Categorical(weight=memory.times), prior=prior, structure=memory.structure)
    return recipe.fit(model, (task.x, task.labels), output=task.outputs).as_prior()


def trained(model: nn.Module, task: Task, prior: lw.Prior | None, epochs: int, seed: int) -> nn.Module:
    """The network at the maximum of likelihood × prior, or of the likelihood, found by Adam from where it was."""
    n = len(task.y)

    def loss(raw: Tensor, labels: Tensor) -> Tensor:
        fit = F.cross_entropy(task.outputs(raw), labels)
        return fit if prior is None else fit + prior.penalty(model).to(raw) / n

    return train(model, task.x, task.labels, epochs=epochs, batch=50, rate=3e-3, loss=loss, seed=seed)


@dataclass(frozen=True, eq=False)
class Task:
    """Images of some digits.

    Args:
        x: The images, as vectors.
        y: The digits.
        number: Which task, of whose two outputs the network is asked; ``None`` for all outputs.
    """

    x: Tensor
    y: Tensor
    number: int | None

    @property
    def labels(self) -> Tensor:
        """The number of the output that each image should have."""
        return self.y if self.number is None else self.y - 2 * self.number

    def outputs(self, raw: Tensor) -> Tensor:
        """The outputs of the task."""
        return raw if self.number is None else raw[:, 2 * self.number : 2 * self.number + 2]


def tasks(seed: int) -> tuple[list[Task], list[Task]]:
    """The data of each task to learn from, and to test on."""
    split = digits(seed)
    learned = [of_task(split.x_train, split.y_train, number) for number in range(TASKS)]
    held = [of_task(split.x_test, split.y_test, number) for number in range(TASKS)]
    return learned, held


def of_task(x: Tensor, y: Tensor, number: int) -> Task:
    """The images of two digits."""
    own = y // 2 == number
    return Task(x[own].flatten(1), y[own], number)


def accuracy(model: nn.Module, task: Task) -> float:
    """The fraction of the images that it names rightly, of the two digits."""
    with torch.no_grad():
        return float((task.outputs(model(task.x)).argmax(1) == task.labels).float().mean())


STUDY = Study(rows, COLUMNS)

if __name__ == "__main__":
    main({"continual": STUDY})
