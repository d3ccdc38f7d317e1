"""The average over images and their mirror images: three ResNets of CIFAR-10, with one view and with both.

    python -m studies.mirror_images --data DIR --json FILE

The networks were trained on images and their mirror images. Each is scored as it is, with a temperature, and under a
diagonal posterior, tuned by the same 300 images as the temperature and by default, on one view; then all of these for
the network that averages its outputs over both views. Differences are from temperature scaling on the average.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting, Study, main
from benchmarks.report import Row
from benchmarks.tasks import RESNETS, Task
from lapwing.comparison import Contender, Tuned
from lapwing.evaluation import task as evaluation
from lapwing.evaluation.evaluate import Predictor
from lapwing.evaluation.plain_network import PlainNetwork
from studies.compared import compared

IMAGES = 1000
"""Training images behind the curvature."""

ONE_VIEW = ", one view"
"""Behind the name of a method on the network as it is."""


def mirrored(image: Tensor) -> Tensor:
    """The mirror image."""
    return image.flip(-1)


def rows(setting: Setting) -> Iterator[Row]:
    """Every method on every network."""
    for name in setting.among(RESNETS):
        task = Task.read(name, setting, IMAGES)
        averaged = lw.TestTimeAugmentation(task.model, [mirrored])
        options: dict[str, Any] = {"validation": task.held_out, "likelihood": task.likelihood}
        every = methods(task)
        options["methods"] = {method: every[method] for method in setting.among(every)}
        for row in compared(averaged, task.train, task.test, **options):
            yield {"network": name} | row


def methods(task: Task) -> dict[str, Contender]:
    """What is compared beside the network and its temperature on both views.

    Args:
        task: The network on one view, and its data.
    """
    plain = PlainNetwork(task.model, task.likelihood)
    recipe = lw.Laplace(task.likelihood, structure=lw.Diagonal())
    by_validation = lw.Validation(task.held_out, seconds=None)
    return {
        "plain network" + ONE_VIEW: plain,
        "temperature scaling" + ONE_VIEW: lambda given: plain.calibrated(task.held_out),
        "diagonal" + ONE_VIEW: on_one_view(task, recipe, by_validation),
        "diagonal, no validation data" + ONE_VIEW: on_one_view(task, recipe),
        "diagonal": Tuned(recipe, by_validation),
        "diagonal, no validation data": Tuned(recipe),
    }


def on_one_view(
    task: Task, recipe: lw.Laplace, method: lw.Validation | None = None
) -> Callable[[evaluation.Task], Predictor]:
    """A tuned posterior of the network as it is.

    Args:
        task: The network and its data.
        recipe: Of the posterior.
        method: What tunes it; ``None`` for the default.
    """

    def fit(given: evaluation.Task) -> Predictor:
        return lw.tune(recipe.fit(task.model, task.train, generator=given.generator), method)

    return fit


STUDY = Study(rows, needs="CIFAR-10 and the trained networks")

if __name__ == "__main__":
    main({"mirror_images": STUDY})
