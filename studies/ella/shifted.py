"""The methods side by side: test images, corrupted ones, and images that show nothing the network knows.

    python -m studies.ella shifted --data DIR --json FILE [--resume FILE] [--only KFAC ...] [--figure FILE]

The first 300 test images stop ELLA, fit the temperature and tune prior, link and temperature of the others; all are
scored on the other 717 by ``lw.compare``. *Corrupted*: the first of these, each by one of fourteen corruptions, at
severities 1 to 5, the same images for every method. *Elsewhere*: images of CIFAR-100, whose classes the network does
not know; every answer there is wrong, so few of the answers with a confidence of at least τ should be errors. Of
"prior alone" only the prior is tuned and the logits are drawn, as the source has it. A method that takes more than
``--seconds`` has a row that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import CHECKPOINTS, Pair, generator
from benchmarks.report import Row, figure
from benchmarks.tasks import VALIDATION
from lapwing import comparison
from lapwing.comparison import Contender, Tuned
from lapwing.evaluation.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from studies.compared import compared
from studies.ella.setting import NETWORK, SOURCE, EarlyStopped, Ella
from studies.published import beside_published

THRESHOLDS = tuple(k / 20 for k in range(21))
SHOWN = (0.5, 0.7, 0.9)

SECONDS = 3600.0
"""What a method may take."""

RECIPES: Mapping[str, dict[str, Any]] = {
    "last layer": {"weights": lw.LastLayer(), "structure": lw.Full(view="weights")},
    "KFAC": {"structure": lw.KFAC()},
}
"""What ELLA is compared with, beside the network alone and its temperature."""

PUBLISHED = {
    ("plain network", "nll"): 0.282,
    ("plain network", "ece"): 0.039,
    ("plain network", "accuracy"): 0.926,
    ("ELLA", "nll"): 0.233,
    ("ELLA", "ece"): 0.009,
    ("ELLA", "accuracy"): 0.925,
    ("last layer, prior alone", "nll"): 0.269,
    ("last layer, prior alone", "ece"): 0.034,
    ("KFAC, prior alone", "nll"): 0.852,
    ("KFAC, prior alone", "ece"): 0.467,
}
"""The source's scores of this network on all test images, by method and score."""


@dataclass(frozen=True, eq=False)
class Images:
    """What every method is asked about.

    Args:
        test: Test images and labels.
        corrupted: Some of them at each severity; 0 as they are.
        far: Images from elsewhere.
    """

    test: Pair
    corrupted: Mapping[int, Pair]
    far: Tensor

    @classmethod
    def of(cls, ella: Ella) -> Images:
        """The images of a study."""
        most = ella.amount.corrupted
        labels = ella.task.test[1][:most]
        clean, transform, far = pixels(ella)
        sets = {severity: (transform(worse(clean[:most], severity)), labels) for severity in SEVERITIES}
        return cls(ella.task.test, {0: (ella.task.test[0][:most], labels)} | sets, far[: ella.amount.far])


def pixels(ella: Ella) -> tuple[Tensor, Callable[[Tensor], Tensor], Tensor]:
    """Test images in [0, 1], what makes of such ones what the network takes, and images from elsewhere."""
    if ella.setting.quick:
        clean = ella.task.test[0]
        return clean, torch.clone, torch.rand(clean.shape, generator=generator(1))
    folder = ella.setting.folder / "cifar10"
    with np.load(folder / "cifar10_subset.npz") as file:
        clean = torch.from_numpy(file["x_test"][VALIDATION:]) / 255
    checkpoint = CHECKPOINTS[NETWORK]
    with np.load(folder / "cifar100_some.npz") as file:
        far = checkpoint.normalise(torch.from_numpy(file["x"]))
    return clean, lambda images: checkpoint.normalise((255 * images).round().to(torch.uint8)), far


def worse(images: Tensor, severity: int) -> Tensor:
    """Images of which each has one corruption; that of every fourteenth is the same, at every severity."""
    changed = images.clone()
    for number, name in enumerate(CORRUPTIONS):
        own = images[number :: len(CORRUPTIONS)]
        if len(own):
            changed[number :: len(CORRUPTIONS)] = corrupt(own, name, severity, generator=generator(number))
    return changed


def rows(setting: Setting) -> Iterator[Row]:
    """A row a method."""
    ella = Ella.read(replace(setting, only=(), resume=None))  # the same entry, whatever else is asked for
    images = Images.of(ella)
    entries = methods(ella)
    yield from compared(
        ella.task.model,
        ella.fitted,
        images.test,
        methods={name: entries[name] for name in setting.among(entries)},
        validation=ella.task.held_out,
        shifts={shift_name(severity): pair for severity, pair in images.corrupted.items()},
        ood=images.far,
        facts=rejected,
        budget_seconds=setting.more["seconds"],
        out=setting.resume,
    )


def methods(ella: Ella) -> dict[str, Contender]:
    """ELLA, and each recipe tuned by the validation images: with its link and temperature, and by its prior alone."""
    held_out = ella.task.held_out
    likelihood = lw.Categorical(weight=ella.task.examples / len(ella.fitted[1]))
    tuned = lw.Validation(held_out, seconds=None)
    by_prior = lw.Validation(held_out, link="mc", temperature=False, seconds=None)
    found: dict[str, Contender] = {"ELLA": EarlyStopped(ella)}
    for name, options in RECIPES.items():
        recipe = lw.Laplace(likelihood, **options)
        found[name] = Tuned(recipe, tuned)
        found[f"{name}, prior alone"] = Tuned(recipe, by_prior, link="mc")
    return found


def shift_name(severity: int) -> str:
    """What the images of a severity are called."""
    return f"severity {severity}"


def rejected(row: comparison.Row) -> Row:
    """What a method's confidence is worth where images from elsewhere are among the test images."""
    (examples,) = row.examples
    values = examples.values
    return rejection(values["confidence"], values["correct"], 1 - values["foreign_uncertainty"])


def rejection(inside: Tensor, correct: Tensor, outside: Tensor) -> Row:
    """Errors above and below each confidence, the shares of images there, and how well confidence tells them apart.

    Args:
        inside: Confidence in the answer to each test image.
        correct: Whether it is right.
        outside: Confidence in the answers to the others, which are all wrong.
    """
    confidence = torch.cat([inside, outside])
    wrong = torch.cat([1 - correct.double(), torch.ones(len(outside), dtype=torch.float64)])
    above: list[float | None] = []
    below: list[float | None] = []
    for threshold in THRESHOLDS:
        sure = confidence >= threshold
        above.append(float(wrong[sure].mean()) if bool(sure.any()) else None)
        below.append(float(wrong[~sure].mean()) if bool((~sure).any()) else None)
    row: Row = {"auroc": lw.metrics.auroc(1 - inside, 1 - outside)}
    row |= {f"share_{t:g}": float((confidence >= t).double().mean()) for t in SHOWN}
    row |= {f"error_{t:g}": above[THRESHOLDS.index(t)] for t in SHOWN}
    return row | {"thresholds": list(THRESHOLDS), "error_above": above, "error_below": below}


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """Scores of the source's table beside ours, which are of 717 of its 10,000 test images."""
    for row in found:
        for (method, score), value in PUBLISHED.items():
            if row.get("method") == method and score in row:
                yield beside_published(f"{score} of {method}, ResNet-20", row[score], value, f"{SOURCE}, table 1")


def draw(found: Sequence[Row]) -> Any:
    """NLL and ECE by severity, and errors by confidence with images from elsewhere."""
    made = figure(14.0, 4.0, 3)
    nll, ece, errors = made.axes
    for row in found:
        if "nll" in row:
            for panel, score in ((nll, "nll"), (ece, "ece")):
                severities = (0, *SEVERITIES)
                panel.plot(
                    severities, [row[f"{score}:{shift_name(k)}"] for k in severities], marker="o", label=row["method"]
                )
            points = zip(row["thresholds"], row["error_above"], strict=True)
            line = [(t, e) for t, e in points if e is not None]
            errors.plot(*zip(*line, strict=True), label=row["method"])
    nll.set(xlabel="severity", ylabel="NLL, nats")
    ece.set(xlabel="severity", ylabel="ECE")
    errors.set(xlabel="confidence τ", ylabel="error, confidence ≥ τ, a quarter from elsewhere")
    nll.legend(frameon=False, fontsize=8)
    return made
