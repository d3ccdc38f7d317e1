"""Error against confidence where a part of the images shows nothing the network knows, and every answer there is wrong.

    python -m studies.ella rejection --data DIR --json FILE --figure FILE [--seeds 5] [--only plain ELLA ...]

As many handwritten digits, enlarged to the size of the test images, stand beside the test images: of MNIST, without
data those of scikit-learn. The error of the answers whose confidence is at least τ should be small and fall with τ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.data import mnist
from benchmarks.training import digits
from lapwing.evaluation import metrics
from studies.ella.contenders import contenders
from studies.ella.setting import Case, Setting
from studies.predictors import probabilities
from studies.report import Row, figure

THRESHOLDS = tuple(k / 20 for k in range(20))
SHOWN = (0.0, 0.5, 0.7, 0.9)
COLUMNS = ("auroc", "rejection_area", "confidence_inside", "confidence_outside", *(f"error_{t:g}" for t in SHOWN))


def rows(setting: Setting) -> Iterator[Row]:
    """A row for each network, method and seed of the landmarks."""
    for case in setting.cases(("ella_resnet20",)):
        others = foreign(case, setting)
        for name, seed, predictor, failure in contenders(case, setting):
            head: Row = {"study": "rejection", "part": case.task.name, "method": name, "failure": failure}
            head |= {"foreign_images": len(others)} | ({} if seed is None else {"seed": seed})
            if predictor is None:
                yield head
                continue
            yield head | judged(
                probabilities(predictor, case.task.test[0]), case.task.test[1], probabilities(predictor, others)
            )


def foreign(case: Case, setting: Setting) -> Tensor:
    """As many digits as there are test images, of their size and with their channels, as the network takes them."""
    test = case.task.test[0]
    pixels = (digits() if setting.data is None else mnist(setting.data)).x_test[: len(test)]
    large = functional.interpolate(pixels, size=test.shape[2:], mode="bilinear", align_corners=False)
    return case.task.transform(large.expand(-1, test.shape[1], -1, -1).contiguous())


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


def draw(found: Sequence[Row]) -> Any:
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
