"""The CIFAR-10 table: ELLA as published and with what it leaves open, beside what it is compared with.

    python -m studies.ella cifar --data DIR --json FILE [--networks ella_resnet20] [--only METHOD ...] [--seeds 5]

The first 300 test images stop ELLA early, tune by validation and fit the temperature; all methods are scored on the
other 717. The paper's prior is 1 / (N γ) for N = 50,000 and the weight decay γ = 1e-4, a precision of 5. ELLA reads the
training images in their order until it stops; the others have the first 2000. All predict with 512 draws of the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import lapwing as lw
from benchmarks.command import Setting
from benchmarks.report import Row, attempt, tried
from benchmarks.tasks import RESNETS, Drawn, Task
from lapwing.comparison.bench import measured
from lapwing.ground import probes
from lapwing.posteriors import NystromPosterior, Posterior
from studies.ella.setting import Amount, amount_of, at_precision, cases, ella, first, precision, scores, watched

COLUMNS = (
    "nll", "nll_over_plain", "ece", "accuracy", "brier", "precision", "stopped_at", "kernel_error", "fit_seconds",
    "tune_seconds", "predict_seconds", "fit_mib", "predict_mib",
)  # fmt: skip
OTHERS = {
    "last layer": lw.Laplace(lw.Categorical(), structure=lw.Full(), weights=lw.LastLayer()),
    "diagonal": lw.Laplace(lw.Categorical(), structure=lw.Diagonal()),
    "KFAC": lw.Laplace(lw.Categorical(), structure=lw.KFAC()),
    "last layer, KFAC": lw.Laplace(lw.Categorical(), structure=lw.KFAC(), weights=lw.LastLayer()),
}


SHIFT = 4
"""Most pixels an image of 32 is moved by in each direction."""


@dataclass(frozen=True)
class Strength:
    """How far images are changed, in units of the standardised intensities.

    Args:
        light: Standard deviation of the change of brightness, and of the logarithm of the contrast.
        noise: Largest standard deviation of the noise.
        hole: Side of the square that is blanked, as a part of the image's.
    """

    light: float
    noise: float
    hole: float


STRENGTHS = {"mild": Strength(0.1, 0.05, 0.25), "strong": Strength(0.2, 0.1, 0.25)}
"""Training images changed so strongly that a network which fits them errs on some, in the place of held-out images."""

VALIDATED, ALL = "ELLA, validation images", "ELLA, all images"
AUGMENTED = {f"ELLA, {name} augmentation": strength for name, strength in STRENGTHS.items()}
PLAIN = ("plain", "temperature scaling")
METHODS = (*PLAIN, VALIDATED, *AUGMENTED, ALL, *OTHERS)


def rows(setting: Setting) -> Iterator[Row]:
    """Every method on every network.

    The first 300 test images stop early, tune by validation and fit the temperature; scored on the other 717. The
    prior is the paper's, 1 / (50 000 · 1e-4), or tuned. ECE with 15 bins.
    """
    for case in cases(setting, RESNETS):
        for row in of_network(case, setting):
            yield {"part": case.name} | row


def of_network(case: Task, setting: Setting) -> Iterator[Row]:
    """Every method on one network, those without randomness once."""
    asked = setting.among(METHODS)
    for name in (name for name in case.alone if name in asked):
        found, failure = attempt(case.alone[name])
        row = {"failure": failure} if found is None else scores(found, case)
        yield {"method": name, "prior": ""} | row
    for seed in setting.repeats:
        for row in by_ella(case, setting, seed):
            yield {"seed": seed} | row
    for name, recipe in OTHERS.items():
        if name in setting.among(METHODS):
            for row in by_other(case, amount_of(setting), recipe):
                yield {"method": name} | row


def by_ella(case: Task, setting: Setting, seed: int) -> Iterator[Row]:
    """ELLA stopped early by validation images or by augmented training images, and not stopped."""
    amount = amount_of(setting)
    stops: dict[str, Any] = {VALIDATED: watched(case.held_out, amount)}
    for name, strength in AUGMENTED.items():
        stops[name] = replace(stops[VALIDATED], data=None, augment=augmentation(strength))
    stops[ALL] = None
    for name, stopping in stops.items():
        if name not in setting.among(METHODS):
            continue
        posterior, row = ella(case, amount, seed, stopping=stopping)
        head = {"method": name, "prior": "paper", "precision": precision(case)}
        yield head | row | scores(Drawn(posterior, amount.samples), case)
        if name in AUGMENTED:
            continue
        for kept, residual in ({"": False, ", residual": True} if name == ALL else {"": False}).items():
            start = replace(posterior, residual=residual)
            priors = tuned(start, case, amount)
            if residual:
                priors = {"paper": lambda start=start: start} | priors
            for prior, way in priors.items():
                yield {"method": name + kept, "prior": prior} | row | under(way, case, amount)


def by_other(case: Task, amount: Amount, recipe: lw.Laplace) -> Iterator[Row]:
    """One of the methods ELLA is compared with, under the paper's prior and with its own tuned."""
    train = first(case.train, amount.images)
    found = measured(lambda: attempt(lambda: recipe.fit(case.model, train)))
    fitted, failure = found.value
    row: Row = {"images": len(train[1]), "fit_seconds": found.seconds, "fit_mib": found.peak_mib, "failure": failure}
    if fitted is None:
        yield {"prior": ""} | row
        return
    priors = {"paper": lambda: at_precision(fitted, precision(case))} | tuned(fitted, case, amount)
    for prior, way in priors.items():
        yield {"prior": prior} | row | under(way, case, amount)


def tuned(posterior: Posterior, case: Task, amount: Amount) -> dict[str, Callable[[], Posterior]]:
    """The ways to tune a prior."""
    ways: dict[str, Any] = {
        "evidence": lw.EvidenceGradient(),
        "validation": lw.Validation(case.held_out, link="mc"),
    }
    return {name: partial(lw.tune, posterior, way) for name, way in ways.items()}


def under(way: Callable[[], Posterior], case: Task, amount: Amount) -> Row:
    """The prior precision a way of tuning finds, its seconds, and the scores."""
    posterior, row = tried(way, "tune_seconds")
    if posterior is None:
        return row
    row["precision"] = float(posterior.prior_precisions[0])
    if isinstance(posterior, NystromPosterior):
        row["log_marginal"] = float(posterior.log_marginal())
    found, failure = attempt(lambda: scores(Drawn(posterior, amount.samples), case))
    return row | {"failure": failure} | (found or {})


def augmentation(strength: Strength) -> Callable[[Tensor, torch.Generator], Tensor]:
    """Mirrored, moved, with other light, noise and a hole; each image on its own."""

    def augment(images: Tensor, generator: torch.Generator) -> Tensor:
        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator).to(images)

        def normal(*shape: int) -> Tensor:
            return probes.gaussian(shape, like=images, generator=generator)

        n, _, h, w = images.shape
        x = moved(torch.where(uniform(n, 1, 1, 1) < 0.5, images, images.flip(-1)), uniform(n, 2), SHIFT * h // 32)
        x = x * (strength.light * normal(n, 1, 1, 1)).exp() + strength.light * normal(n, 1, 1, 1)
        x = x + strength.noise * uniform(n, 1, 1, 1) * normal(*x.shape)
        side = round(strength.hole * h)
        down, right = ((uniform(n, 1) * (length - side + 1)).floor() for length in (h, w))
        rows, columns = (torch.arange(length, device=x.device).expand(n, -1) for length in (h, w))
        inside = ((rows >= down) & (rows < down + side))[:, :, None]
        inside = inside & ((columns >= right) & (columns < right + side))[:, None]
        return x.masked_fill(inside[:, None], 0.0)

    return augment


def moved(images: Tensor, shares: Tensor, most: int) -> Tensor:
    """Images moved by up to ``most`` pixels in each direction, mirrored at the edges.

    Args:
        images: ``[n, ch, h, w]``.
        shares: Two numbers in [0, 1) an image, down and right.
        most: Pixels.
    """
    _, _, h, w = images.shape
    wide = functional.pad(images, (most,) * 4, mode="reflect")
    start = (shares * (2 * most + 1)).long()
    rows = start[:, :1] + torch.arange(h, device=images.device)
    columns = start[:, 1:] + torch.arange(w, device=images.device)
    picked = wide.gather(2, rows[:, None, :, None].expand(-1, wide.shape[1], -1, wide.shape[3]))
    return picked.gather(3, columns[:, None, None, :].expand(-1, wide.shape[1], h, -1))
