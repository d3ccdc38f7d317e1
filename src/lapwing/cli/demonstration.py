"""A scan simulated, reconstructed, given error bars, and continued: numbers, pictures and a page."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from lapwing import ct
from lapwing.cli.imaging import ImagingEffort, imaged
from lapwing.comparison import Column, Comparison, Row
from lapwing.ground.canvas import panels, picture
from lapwing.show.report import write_json, write_report

INSIDE = 0.05
"""Attenuation from which a pixel belongs to the object."""

REACH = 1.96
"""Standard deviations to either side of a 95 % interval."""

COLUMNS = (
    Column("psnr", "PSNR", "higher", ".2f", "peak signal-to-noise ratio of the image, dB"),
    Column("coverage", "coverage", "neither", ".3f", "pixels of the object inside their 95 % interval"),
    Column("marginal", "pixels", "higher", ".3f", "log density of the true image by single pixels, nats a pixel"),
    Column("patches", "patches", "higher", ".3f", "log density of the true image by 10 x 10 patches, nats a pixel"),
)


@final
@dataclass(frozen=True)
class Size:
    """How much of everything.

    Args:
        side: Of the image, in pixels.
        angles: That are measured.
        candidates: That might be, the measured ones among them.
        effort: For the error bars, and the next angles.
    """

    side: int = 64
    angles: int = 20
    candidates: int = 60
    effort: ImagingEffort = field(default_factory=lambda: ImagingEffort(samples=256, draws=1000))


QUICK = Size(side=8, angles=2, candidates=4, effort=ImagingEffort(channels=4, steps=30, samples=16, draws=32))


def demonstrate(out: Path, *, size: Size | None = None, seed: int = 0, progress: bool | None = None) -> dict[str, Any]:
    """Scan a walnut that was never there: FBP, total variation, deep image prior, error bars, the next angles.

    Args:
        out: Folder for ``results.json``, ``reconstruction.png`` and ``report.html``.
        size: How much of everything.
        seed: Of everything random.
        progress: Whether to show progress bars; ``None`` for after two seconds, in a terminal.

    Returns:
        What ``results.json`` holds.
    """
    start = time.monotonic()
    size = size or Size()
    generator = torch.Generator().manual_seed(seed)
    side = size.side
    whole = ct.Projector(ct.Parallel2d((side, side), ct.equidistant(size.candidates), detector=side))
    measured = list(range(0, size.candidates, size.candidates // size.angles))[: size.angles]
    operator = whole.select(measured)
    truth = ct.walnut((side, side), generator=generator).float()
    y, std = ct.add_gaussian(operator.push(truth.flatten()), 0.05, generator=generator)
    images = {
        "FBP": ct.filtered_back_projection(y, operator.geometry),
        "TV": ct.tv_reconstruction(y, operator, 3.0, precision=std**-2, progress=progress).value,
    }
    found, posterior = imaged(operator, y, std, size.effort, generator=generator, progress=progress)
    images["DIP"] = found.image
    design = ct.Design.after(
        posterior, whole, size.candidates, measured, samples=size.effort.draws, generator=generator
    )
    proposed = design.propose(min(5, size.candidates - size.angles))
    inside = truth > INSIDE
    error = truth - posterior.mean
    deviations = posterior.deviations
    scores = {
        "coverage": float((error.abs() < REACH * posterior.std)[inside].float().mean()),
        "marginal": ct.log_density(posterior.mean, deviations, truth),
        "patches": ct.log_density(posterior.mean, deviations, truth, size=10),
    }
    psnr = {name.lower(): ct.psnr(image, truth) for name, image in images.items()}
    out.mkdir(parents=True, exist_ok=True)
    _draw(images, truth, posterior.std, out / "reconstruction.png")
    results: dict[str, Any] = _page(size, psnr, scores, proposed, std) | {
        "psnr": psnr,
        "coverage": scores["coverage"],
        "marginal_log_likelihood": scores["marginal"],
        "patch_log_likelihood": scores["patches"],
        "next_angles": [math.pi * angle / size.candidates for angle in proposed],
        "precisions": [step.prior_precision[0] for step in posterior.trace],
        "held_out": found.held_out,
        "settings": asdict(size) | {"seed": seed, "noise_std": std, "weights": len(posterior.observed.weights)},
        "seconds": time.monotonic() - start,
    }
    write_json(results, out / "results.json")
    write_report(out / "results.json")
    return results


def _page(
    size: Size, psnr: dict[str, float], scores: dict[str, float], angles: list[int], std: float
) -> dict[str, Any]:
    """What the page says."""
    *others, (name, best) = psnr.items()
    rows = [Row(other.upper(), "", ({"psnr": value},)) for other, value in others]
    rows.append(Row(name.upper(), "evidence", ({"psnr": best} | scores,)))
    degrees = ", ".join(f"{180 * angle / size.candidates:.4g}" for angle in angles)
    text = [
        f"A generated walnut of {size.side} x {size.side} pixels, seen from {size.angles} angles with noise of 5 % "
        f"of the mean (standard deviation {std:.3g}), by filtered back-projection, by total variation, and by a "
        "U-net that was fitted to this scan alone and then made linear: its error bars are those of a Gaussian linear "
        "model, its prior's precision chosen by expectation maximisation.",
        f"The angles to measure next, the most telling first: {degrees} degrees.",
    ]
    caption = "The standard deviation of every pixel beside its error, in one scale."
    figure = {"file": "reconstruction.png", "title": "Reconstruction and error bars", "caption": caption}
    return {"title": "Tomography", "text": text, "figures": [figure]} | Comparison(tuple(rows), COLUMNS).to_dict()


def _draw(images: dict[str, Tensor], truth: Tensor, std: Tensor, path: Path) -> None:
    """The truth, the reconstructions, and the error of the last beside its error bars."""
    error = (truth - images["DIP"]).abs()
    axes = panels(11.0, 6.2, 3, 2)
    gray: dict[str, Any] = {"cmap": "gray", "vmax": float(truth.max())}
    magma: dict[str, Any] = {"cmap": "magma", "vmax": float(torch.maximum(error, 2 * std).max())}
    for ax, (name, image) in zip(axes[:4], ({"truth": truth} | images).items(), strict=True):
        picture(ax, image, name, **gray)
    picture(axes[4], error, "|error| of DIP", **magma)
    picture(axes[5], 2 * std, "2 standard deviations", **magma)
    figure: Any = axes[0].figure
    figure.savefig(path)
