"""What happens where images change: corrupted ones, and ones that show nothing the network knows.

    python -m studies.ella corruption --data DIR --json FILE --figure FILE [--seeds 1] [--only plain ELLA ...]
    python -m studies.ella rejection --data DIR --json FILE --figure FILE [--seeds 5] [--only plain ELLA ...]

*Corruption*: scores of 240 of the test images, 14 kinds at 5 severities, the same for every method. *Rejection*: as
many handwritten digits, enlarged to the size of the test images, stand beside these: of MNIST, without data those of
scikit-learn. Every answer there is wrong; the error of the answers whose confidence is at least τ should be small and
fall with τ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.data import digits, mnist
from benchmarks.report import Row, attempt, figure, timed
from benchmarks.tasks import Drawn, Task, corruption_sweep, probabilities
from lapwing import metrics
from studies.ella.cifar import OTHERS
from studies.ella.setting import Amount, amount_of, cases, ella, first, watched

CHOICE = ("plain", "temperature scaling", "ELLA", "last layer")
SCORES = ("nll", "ece", "accuracy")
SEVERITIES = range(6)
CORRUPTION = (*(f"{score}_{k}" for score in SCORES for k in SEVERITIES), "seconds")
THRESHOLDS = tuple(k / 20 for k in range(20))
SHOWN = (0.0, 0.5, 0.7, 0.9)
REJECTION = ("auroc", "rejection_area", "confidence_inside", "confidence_outside", *(f"error_{t:g}" for t in SHOWN))


def contenders(case: Task, setting: Setting) -> Iterator[tuple[Row, Any]]:
    """What a row begins with and the predictor of each that was asked for, or else of ``CHOICE``.

    ELLA stops early by the validation images under the paper's prior; the others are tuned by these images.
    """
    asked, amount = setting.among((*CHOICE, *OTHERS), CHOICE), amount_of(setting)
    ways: dict[str, Callable[[], Any]] = {**case.alone}
    for name, recipe in OTHERS.items():
        ways[name] = lambda recipe=recipe: Drawn(validated(recipe, case, amount), amount.samples)
    head: Row = {"part": case.name}
    for name in (name for name in ways if name in asked):
        found, failure = attempt(ways[name])
        yield head | {"method": name, "failure": failure}, found
    for seed in setting.repeats if "ELLA" in asked else ():
        stopping = watched(case.held_out, amount)
        found, failure = attempt(lambda seed=seed, by=stopping: ella(case, amount, seed, stopping=by)[0])
        row = head | {"method": "ELLA", "failure": failure, "seed": seed}
        yield row, None if found is None else Drawn(found, amount.samples)


def validated(recipe: lw.Laplace, case: Task, amount: Amount) -> Any:
    """A posterior whose prior precision the validation images choose."""
    fitted = recipe.fit(case.model, first(case.train, amount.images))
    return lw.tune(fitted, lw.Validation(case.held_out, link="mc"))


def corruption(setting: Setting) -> Iterator[Row]:
    """A row for each network, method and seed of the landmarks.

    By severity, 0 as they were; means over 14 kinds of corruption.
    """
    for case in cases(setting, ("ella_resnet20",)):
        for row, predictor in contenders(case, setting):
            yield row if predictor is None else row | swept(predictor, case, amount_of(setting))


def swept(predictor: Any, case: Task, amount: Amount) -> Row:
    """Means over the corruptions at each severity; 0 are the same images as they were."""
    sweep, seconds = timed(lambda: corruption_sweep(predictor, case, amount.corruptions, amount.corrupted))
    row: Row = {"corrupted_images": min(amount.corrupted, len(case.pixels)), "seconds": seconds}
    for score in SCORES:
        row |= {f"{score}_{severity}": value for severity, value in sweep.by_severity(score).items()}
        row[score] = {name: [at[score] for at in found] for name, found in sweep.corrupted.items()}
    return row


def draw_corruption(found: Sequence[Row]) -> Any:
    """NLL, ECE and accuracy by severity."""
    means = [row for row in found if row.get("summary") and "nll_0" in row]
    made = figure(13, 4, len(SCORES))
    for panel, score in zip(made.axes, SCORES, strict=True):
        for row in means:
            several = len({other["part"] for other in means}) > 1
            label = f"{row['method']}, {row['part']}" if several else row["method"]
            panel.plot(SEVERITIES, [row[f"{score}_{k}"] for k in SEVERITIES], marker="o", label=label)
        panel.set(xlabel="severity", ylabel={"nll": "NLL, nats", "ece": "ECE"}.get(score, score))
        panel.legend(frameon=False, fontsize=8)
    return made


def rejection(setting: Setting) -> Iterator[Row]:
    """A row for each network, method and seed of the landmarks.

    717 test images and as many digits of MNIST, whose answers are all wrong.
    """
    for case in cases(setting, ("ella_resnet20",)):
        others, (x, y) = foreign(case, setting), case.test
        for row, predictor in contenders(case, setting):
            row |= {"foreign_images": len(others)}
            if predictor is not None:
                row |= judged(probabilities(predictor, x), y, probabilities(predictor, others))
            yield row


def foreign(case: Task, setting: Setting) -> Tensor:
    """As many digits as there are test images, of their size and with their channels, as the network takes them."""
    test = case.test[0]
    pixels = (digits() if setting.data is None else mnist(setting.data)).x_test[: len(test)]
    large = functional.interpolate(pixels, size=test.shape[2:], mode="bilinear", align_corners=False)
    return case.transform(large.expand(-1, test.shape[1], -1, -1).contiguous())


def judged(inside: Tensor, labels: Tensor, outside: Tensor) -> Row:
    """Errors above and below each confidence, the shares of images there, and how well confidence tells them apart.

    Args:
        inside: Probabilities of the test images.
        labels: Their labels.
        outside: Probabilities of the others.
    """
    confidence = torch.cat([inside.amax(-1), outside.amax(-1)])
    wrong = torch.cat([inside.argmax(-1) != labels, torch.ones(len(outside), dtype=torch.bool)]).double()
    row: Row = {"auroc": metrics.auroc(1 - inside.amax(-1), 1 - outside.amax(-1))}
    kept = wrong[confidence.argsort(descending=True)].cumsum(0) / torch.arange(1, len(wrong) + 1)
    row |= {"rejection_area": 1 - float(kept.mean())}
    row |= {"confidence_inside": float(inside.amax(-1).mean()), "confidence_outside": float(outside.amax(-1).mean())}
    above = [confidence >= t for t in THRESHOLDS]
    curve = {
        "threshold": list(THRESHOLDS),
        "error_above": [float(wrong[part].mean()) if part.any() else None for part in above],
        "error_below": [float(wrong[~part].mean()) if (~part).any() else None for part in above],
        "share_above": [float(part.double().mean()) for part in above],
    }
    errors = dict(zip(THRESHOLDS, curve["error_above"], strict=True))
    return row | {f"error_{t:g}": errors[t] for t in SHOWN} | {"curve": curve}


def draw_rejection(found: Sequence[Row]) -> Any:
    """Error of the answers at least, and less, as confident as a threshold; the first seed of each method."""
    made = figure(13, 4, 3)
    names = {"error_above": "error, confidence ≥ τ", "error_below": "error, confidence < τ"}
    names["share_above"] = "share of images, confidence ≥ τ"
    for panel, (name, label) in zip(made.axes, names.items(), strict=True):
        for row in (row for row in found if "curve" in row and row.get("seed", 0) == 0):
            points = [
                (t, e) for t, e in zip(row["curve"]["threshold"], row["curve"][name], strict=True) if e is not None
            ]
            panel.plot(*zip(*points, strict=True), label=f"{row['method']}, {row['part']}")
        panel.set(xlabel="confidence τ", ylabel=label, ylim=(0, 1))
        panel.legend(frameon=False, fontsize=7)
    return made
