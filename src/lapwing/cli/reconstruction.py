"""A scan of one's own reconstructed with error bars, and the page that shows them."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lapwing import ct
from lapwing.cli.imaging import ImagingEffort, attenuation_of, check_one_slice, common_noise, divisible, imaged
from lapwing.comparison import Column, Comparison, Row
from lapwing.ground.canvas import panels, picture
from lapwing.ground.files.atomic import write_json
from lapwing.show.report.page import write_report

COLUMNS = (
    Column(
        "held_out", "held out", "lower", ".3g", "squared misfit of rays held out over the noise's; 1 is noise alone"
    ),
    Column("misfit", "all rays", "neither", ".3g", "squared misfit of all rays over the noise's"),
    Column("std", "mean standard deviation", "neither", ".3g", "of a pixel, in the unit of the image"),
)


def reconstructed(
    geometry: ct.Geometry,
    sinogram: Float[Tensor, "angles *slices bins"],
    noise_std: float | Float[Tensor, "angles *slices bins"],
    *,
    out: Path,
    effort: ImagingEffort | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> dict[str, Any]:
    """The image of a deep image prior and the standard deviation of each of its pixels.

    Args:
        geometry: Of the scan, one slice; the sides of the image are rounded up to what the U-net divides by.
        sinogram: What it measured, an object.
        noise_std: Standard deviation of its noise, or that of each ray.
        out: Folder for ``image.npy``, ``std.npy``, ``results.json``, ``reconstruction.png`` and ``report.html``.
        effort: How much is done.
        seed: Of everything random.
        progress: Whether to show progress bars; ``None`` for after two seconds, in a terminal.

    Returns:
        What ``results.json`` holds.

    Raises:
        ConfigError: If the scan has several slices.
    """
    start = time.monotonic()
    effort = effort or ImagingEffort()
    check_one_slice(geometry)
    operator = ct.Projector(replace(geometry, pixels=divisible(geometry.pixels), detector=geometry.bins))
    y = geometry.check(sinogram)
    unit = attenuation_of(y, geometry)
    each = noise_std.flatten() if isinstance(noise_std, Tensor) else noise_std
    generator = torch.Generator().manual_seed(seed)
    found, posterior = imaged(operator, y / unit, each / unit, effort, generator=generator, progress=progress)
    image = unit * posterior.mean
    std = unit * posterior.std
    residuals = (y - operator.push(image.flatten())) / each
    out.mkdir(parents=True, exist_ok=True)
    np.save(out / "image.npy", image.numpy())
    np.save(out / "std.npy", std.numpy())
    _draw(image, std, residuals.view(geometry.sinogram), out / "reconstruction.png")
    scores = {
        "held_out": found.held_out,
        "misfit": float(residuals.square().mean()),
        "std": float(std.mean()),
    }
    results: dict[str, Any] = _page(operator.geometry, noise_std, scores) | {
        **scores,
        "precisions": [step.prior_precision[0] for step in posterior.trace],
        "noise_std": common_noise(noise_std),
        "settings": asdict(effort) | {"seed": seed, "pixels": list(operator.geometry.pixels)},
        "seconds": time.monotonic() - start,
    }
    write_json(results, out / "results.json")
    write_report(out / "results.json")
    return results


def _page(geometry: ct.Geometry, noise_std: float | Tensor, scores: dict[str, float]) -> dict[str, Any]:
    """What the page says."""
    if isinstance(noise_std, Tensor):
        noise = (
            f"of each ray's own, standard deviations from {float(noise_std.min()):.3g} to {float(noise_std.max()):.3g}"
        )
    else:
        noise = f"of standard deviation {noise_std:.3g}"
    height, width = geometry.pixels
    text = [
        f"An image of {height} x {width} pixels from {len(geometry.theta)} angles of {geometry.bins} bins, with noise "
        f"{noise}. A U-net was fitted to this scan alone and then made linear: its error bars are those of a Gaussian "
        "linear model, its prior's precision chosen by expectation maximisation.",
        "Intervals are as good as the model: a network that misses a structure altogether does not know that it did. "
        "Rays whose residuals show the object are rays that the image does not explain.",
    ]
    caption = "The image, twice its standard deviation, and what the image leaves of each ray, over the ray's noise."
    figure = {"file": "reconstruction.png", "title": "Reconstruction and error bars", "caption": caption}
    rows = (Row("deep image prior", "evidence", (scores,)),)
    return {"title": "A scan", "text": text, "figures": [figure]} | Comparison(rows, COLUMNS).to_dict()


def _draw(image: Tensor, std: Tensor, residuals: Tensor, path: Path) -> None:
    """The image, its error bars, and the size of the residuals of its rays."""
    axes = panels(12.0, 3.6, 3)
    picture(axes[0], image, "image", cmap="gray")
    picture(axes[1], 2 * std, "2 standard deviations", cmap="magma")
    picture(axes[2], residuals.abs(), "|residuals| of rays / noise", cmap="magma", aspect="auto")
    figure: Any = axes[0].figure
    figure.savefig(path)
