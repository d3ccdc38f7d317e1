"""The methods side by side: test images, corrupted ones, and images that show nothing the network knows.

    python -m studies.ella shifted --data DIR --json FILE [--resume FILE] [--only KFAC ...] [--figure FILE]

The first 300 test images stop ELLA, fit the temperature and tune prior, link and temperature of the others; all are
scored on the other 717. *Corrupted*: the first of these, each by one of fourteen corruptions, at severities 1 to 5, the
same images for every method. *Elsewhere*: images of CIFAR-100, whose classes the network does not know; every answer
there is wrong, so few of the answers with a confidence of at least τ should be errors. ``..._prior_alone`` are scores
where only the prior was tuned and the logits are drawn, as the source has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import CHECKPOINTS, Pair, generator
from benchmarks.report import Row, figure, tried
from benchmarks.tasks import VALIDATION, moments, probabilities
from lapwing.evaluation.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from lapwing.evaluation.plain_network import PlainNetwork
from lapwing.ground.data.sources import Data
from lapwing.posteriors import Posterior
from lapwing.predictive import Classification, Moments
from lapwing.tuning.held_out.budget import Budget
from lapwing.tuning.held_out.outputs import held_out_outputs
from lapwing.tuning.held_out.validation import FACTORS
from studies import links
from studies.ella.setting import NETWORK, SAMPLES, SOURCE, Ella, averaged, predicted, scores
from studies.published import beside_published

THRESHOLDS = tuple(k / 20 for k in range(21))
SHOWN = (0.5, 0.7, 0.9)

RECIPES: Mapping[str, dict[str, Any]] = {
    "last layer": {"weights": lw.LastLayer(), "structure": lw.Full(view="weights")},
    "KFAC": {"structure": lw.KFAC()},
}
"""What ELLA is compared with, beside the network alone and its temperature."""

METHODS = ("network alone", "temperature scaling", "ELLA", *RECIPES)

PUBLISHED = {
    ("network alone", "nll"): 0.282,
    ("network alone", "ece"): 0.039,
    ("network alone", "accuracy"): 0.926,
    ("ELLA", "nll"): 0.233,
    ("ELLA", "ece"): 0.009,
    ("ELLA", "accuracy"): 0.925,
    ("last layer", "nll_prior_alone"): 0.269,
    ("last layer", "ece_prior_alone"): 0.034,
    ("KFAC", "nll_prior_alone"): 0.852,
    ("KFAC", "ece_prior_alone"): 0.467,
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


Predict = Callable[[Tensor], Mapping[str, Tensor]]
"""From images to probabilities, by the ways a method is tuned; the first, named "", is the one that is shown."""


def rows(setting: Setting) -> Iterator[Row]:
    """A row a method."""
    ella = Ella.read(setting)
    images = Images.of(ella)
    for name in setting.among(METHODS):
        yield setting.resumed({"method": name}, partial(measured, ella, images, name))


def measured(ella: Ella, images: Images, name: str) -> Row:
    """A method on all images; the seconds are the processor's."""
    method, row = tried(lambda: fitted(ella, name), "fit_seconds", time.process_time)
    if method is None:
        return row
    predict, facts = method
    found, cost = tried(lambda: judged(predict, images), "predict_seconds", time.process_time)
    row |= cost | {"failure": row["failure"] or cost["failure"]}
    return row | facts | (found or {})


def fitted(ella: Ella, name: str) -> tuple[Predict, Row]:
    """What predicts, and what was chosen for it."""
    network = PlainNetwork(ella.task.model)
    if name == "network alone":
        return lambda x: {"": probabilities(network, x)}, {}
    if name == "temperature scaling":
        calibrated = network.calibrated(ella.task.held_out)
        assert calibrated.temperature is not None
        return lambda x: {"": probabilities(calibrated, x)}, {"temperature": calibrated.temperature.temperature}
    if name == "ELLA":
        images = ella.stopped_at()
        within = ella.compression(images)
        nothing = torch.empty(0, dtype=torch.long)
        chosen: Row = {"precision": ella.precision, "stopped_at": float(images)}
        return lambda x: {"": predicted(within, ella.known((x, nothing)))}, chosen
    return by_recipe(ella, RECIPES[name])


def by_recipe(ella: Ella, options: Mapping[str, Any]) -> tuple[Predict, Row]:
    """A posterior tuned by the validation images, with its link and temperature, and by its prior alone."""
    x, y = ella.task.train
    train = (x[: ella.amount.fitted], y[: ella.amount.fitted])
    likelihood = lw.Categorical(weight=ella.task.examples / len(train[1]))
    posterior = lw.Laplace(likelihood, **options).fit(ella.task.model, train, generator=generator())
    held_out = held_out_outputs(
        posterior, list(Data(ella.task.held_out, like=posterior.network.like)), FACTORS, Budget()
    )
    tuned = links.found(held_out, None, temperature=True)
    by_prior = links.found(held_out, "mc", temperature=False)

    def predict(x: Tensor) -> Mapping[str, Tensor]:
        of_tuned, of_prior = moments(posterior, x, [tuned, by_prior])
        return {"": through(tuned, of_tuned), "_prior_alone": averaged(of_prior)}

    chosen: Row = {"fitted": float(len(train[1])), "precision": float(tuned.prior_precisions[0]), "was": [tuned.link]}
    chosen |= {"temperature": tuned.temperature, "precision_prior_alone": float(by_prior.prior_precisions[0])}
    return predict, chosen


def through(posterior: Posterior, outputs: Moments) -> Tensor:
    """Probabilities of uncertain logits, by the link and temperature of a posterior."""
    found = posterior.likelihood.predictive(
        outputs, posterior.link, temperature=posterior.temperature, samples=SAMPLES, generator=generator()
    )
    assert isinstance(found, Classification)
    return found.probs


def judged(predict: Predict, images: Images) -> Row:
    """Scores on test images, at every severity, and with images from elsewhere among them."""
    x, y = images.test
    inside = predict(x)
    row: Row = {}
    for way, probs in inside.items():
        row |= {f"{name}{way}": value for name, value in scores(probs, y).items()}
    for severity, (worse_x, labels) in images.corrupted.items():
        probs = inside[""][: len(labels)] if severity == 0 else predict(worse_x)[""]
        found = scores(probs, labels, ["nll", "ece", "accuracy"])
        row |= {f"{name}_{severity}": value for name, value in found.items()}
    return row | rejection(inside[""], y, predict(images.far)[""])


def rejection(inside: Tensor, labels: Tensor, outside: Tensor) -> Row:
    """Errors above and below each confidence, the shares of images there, and how well confidence tells them apart.

    Args:
        inside: Probabilities of the test images.
        labels: Their labels.
        outside: Probabilities of the others, whose answers are all wrong.
    """
    confidence = torch.cat([inside.amax(-1), outside.amax(-1)])
    wrong = torch.cat([inside.argmax(-1) != labels, torch.ones(len(outside), dtype=torch.bool)]).double()
    above: list[float | None] = []
    below: list[float | None] = []
    for threshold in THRESHOLDS:
        sure = confidence >= threshold
        above.append(float(wrong[sure].mean()) if bool(sure.any()) else None)
        below.append(float(wrong[~sure].mean()) if bool((~sure).any()) else None)
    row: Row = {"auroc": lw.metrics.auroc(1 - inside.amax(-1), 1 - outside.amax(-1))}
    row |= {f"share_{t:g}": float((confidence >= t).double().mean()) for t in SHOWN}
    row |= {f"error_{t:g}": above[THRESHOLDS.index(t)] for t in SHOWN}
    return row | {"thresholds": list(THRESHOLDS), "error_above": above, "error_below": below}


def verdict(found: Sequence[Row]) -> Iterator[Row]:
    """Scores of the source's table beside ours, which are of 717 of its 10,000 test images."""
    for row in found:
        for (method, score), value in PUBLISHED.items():
            if row.get("method") == method and score in row:
                name, _, alone = score.partition("_")
                quantity = f"{name} of {method}, ResNet-20" + (", prior alone tuned" if alone else "")
                yield beside_published(quantity, row[score], value, f"{SOURCE}, table 1")


def draw(found: Sequence[Row]) -> Any:
    """NLL and ECE by severity, and errors by confidence with images from elsewhere."""
    made = figure(14.0, 4.0, 3)
    nll, ece, errors = made.axes
    for row in found:
        if "nll_5" in row:
            for panel, score in ((nll, "nll"), (ece, "ece")):
                severities = (0, *SEVERITIES)
                panel.plot(severities, [row[f"{score}_{k}"] for k in severities], marker="o", label=row["method"])
            points = zip(row["thresholds"], row["error_above"], strict=True)
            line = [(t, e) for t, e in points if e is not None]
            errors.plot(*zip(*line, strict=True), label=row["method"])
    nll.set(xlabel="severity", ylabel="NLL, nats")
    ece.set(xlabel="severity", ylabel="ECE")
    errors.set(xlabel="confidence τ", ylabel="error, confidence ≥ τ, a quarter from elsewhere")
    nll.legend(frameon=False, fontsize=8)
    return made
