"""A scan that is still running: the angles to measure next, by the deep image prior of those so far."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing import ct
from lapwing.cli.imaging import ImagingEffort, attenuation_of, check_one_slice, divisible, imaged
from lapwing.comparison import Column, Comparison, Row
from lapwing.ct.design import Criterion, Design
from lapwing.ground.canvas import panels, picture
from lapwing.ground.errors import ConfigError
from lapwing.ground.files.atomic import write_json
from lapwing.show.report.page import write_report

SAME = 0.1
"""Part of the distance of two candidates within which one that is measured already is the same angle."""

TELLS = {"ese": "expected squared error of the measurement", "eig": "expected information gain, nats"}


def continued(
    geometry: ct.Geometry,
    sinogram: Float[Tensor, "angles *slices bins"],
    noise_std: float,
    *,
    count: int,
    candidates: int,
    criterion: Criterion,
    out: Path,
    effort: ImagingEffort | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> dict[str, Any]:
    """What to measure next: a deep image prior is fitted to the angles so far, and asked which others would tell most.

    Args:
        geometry: Of the scan so far, one slice.
        sinogram: What it measured, an object.
        noise_std: Standard deviation of its noise.
        count: How many angles to propose.
        candidates: Angles there might be, at equal distances over half a turn, of fans over a whole one.
        criterion: By what angles are judged; see ``Design.scores``.
        out: Folder for ``results.json``, ``next.png`` and ``report.html``.
        effort: How much is done.
        seed: Of everything random.
        progress: Whether to show progress bars; ``None`` for after two seconds, in a terminal.

    Returns:
        What ``results.json`` holds.

    Raises:
        ConfigError: If the scan has several slices, or fewer angles are left.
    """
    start = time.monotonic()
    effort = effort or ImagingEffort()
    generator = torch.Generator().manual_seed(seed)
    whole, behind = _candidates(geometry, candidates)
    left = len(whole.theta) - behind
    if count > left:
        raise ConfigError(f"a count of at most {left}, the angles left", f"{count}", "more candidates")
    y = geometry.check(sinogram)
    unit = attenuation_of(y, geometry)
    projector = ct.Projector(whole)
    operator = projector.select(range(behind))
    std = noise_std / unit
    found, posterior = imaged(operator, y / unit, std, effort, generator=generator, progress=progress)
    design = Design.after(
        posterior, projector, len(whole.theta), range(behind), samples=effort.draws, generator=generator
    )
    scores = design.scores(criterion)
    proposed = design.propose(count, criterion)
    if criterion == "ese":
        scores = unit**2 * scores
    out.mkdir(parents=True, exist_ok=True)
    _draw(unit * posterior.mean, unit * posterior.std, whole.theta, scores, proposed, criterion, out / "next.png")
    results: dict[str, Any] = _page(whole.theta, scores, proposed, criterion, behind, noise_std) | {
        "next_angles": whole.theta[proposed].tolist(),
        "measured": whole.theta[:behind].tolist(),
        "candidates": whole.theta[behind:].tolist(),
        "scores": scores[behind:].tolist(),
        "criterion": criterion,
        "noise_std": noise_std,
        "held_out": found.held_out,
        "precisions": [step.prior_precision[0] for step in posterior.trace],
        "settings": asdict(effort) | {"seed": seed, "pixels": list(whole.pixels)},
        "seconds": time.monotonic() - start,
    }
    write_json(results, out / "results.json")
    write_report(out / "results.json")
    return results


def _candidates(geometry: ct.Geometry, count: int) -> tuple[ct.Geometry, int]:
    """The geometry of the angles measured and, behind them, of those that are left; and how many are measured.

    The sides of the image are rounded up to what the U-net divides by.
    """
    check_one_slice(geometry)
    turn = 2 * math.pi if isinstance(geometry, ct.FanBeam) else math.pi
    grid = ct.equidistant(count, turn)
    apart = (grid[:, None] - geometry.theta + turn / 2) % turn - turn / 2
    new = grid[apart.abs().min(1).values > SAME * turn / count]
    angles = torch.cat([geometry.theta, new])
    return replace(geometry, pixels=divisible(geometry.pixels), detector=geometry.bins, angles=angles), len(
        geometry.theta
    )


def _page(
    theta: Tensor, scores: Tensor, proposed: Sequence[int], criterion: Criterion, behind: int, std: float
) -> dict[str, Any]:
    """What the page says."""
    degrees = [f"{math.degrees(float(theta[angle])):.4g}°" for angle in proposed]
    rows = tuple(Row(name, "", ({"score": float(scores[i])},)) for name, i in zip(degrees, proposed, strict=True))
    text = [
        f"{behind} angles are measured, with noise of standard deviation {std:.3g}. The next ones, the best first, "
        f"each chosen as if those before it were measured: {', '.join(degrees)}.",
        "A U-net was fitted to this scan alone and made linear; an angle is judged by draws of the image from that "
        f"model: {TELLS[criterion]}. The table has it before any further angle is measured.",
    ]
    caption = "The image, twice its standard deviation, and what each angle would tell; lines are the angles proposed."
    figure = {"file": "next.png", "title": "The scan so far, and what is left to learn", "caption": caption}
    column = Column("score", criterion.upper(), "higher", ".4g", TELLS[criterion])
    words = {"title": "The next angles", "heading": "The angles proposed", "rows_are": "angle"}
    return words | {"text": text, "figures": [figure]} | Comparison(rows, (column,)).to_dict()


def _draw(
    image: Tensor, std: Tensor, theta: Tensor, scores: Tensor, proposed: Sequence[int], criterion: str, path: Path
) -> None:
    """The image, its error bars, and the scores of the angles."""
    axes = panels(12.0, 3.6, 3)
    picture(axes[0], image, "image", cmap="gray")
    picture(axes[1], 2 * std, "2 standard deviations", cmap="magma")
    order = theta.argsort()[scores[theta.argsort()].isfinite()]
    axes[2].plot(theta[order].rad2deg(), scores[order])
    for angle in proposed:
        axes[2].axvline(math.degrees(float(theta[angle])), color="#D55E00")
    axes[2].set(title="angles", xlabel="degrees", ylabel=criterion.upper(), ylim=(0, None))
    figure: Any = axes[0].figure
    figure.savefig(path)
