"""Tomography: the angles to measure, error bars of generated walnuts, and volumes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from studies.pages.reports import NOTHING, difference, fixed, grid, grouped_digits, mean_of, row, rows, significant

DESIGNS = {
    "random": "at random",
    "pixels": "independent pixels",
    "Matérn pixels": "Matérn pixels",
    "network": "network, g-prior",
    "network, EIG": "the same by information gain",
    "network, again": "the same, fitted again every five angles",
    "network, filters": "network, the filters' prior of TV-PredCP",
}
ANGLES = (8, 10, 12, 15, 20)
METHODS = {
    "g-prior EM": "g-prior EM",
    "g-prior of the image": "g-prior of the image, EM",
    "TV-PredCP": "TV-PredCP",
    "MC dropout": "MC dropout",
}
"""How the report and the page call a method."""

SCORES = {
    "pixels": "marginal",
    "10 x 10 patches": "patches",
    "coverage inside": "coverage",
    "error over standard deviation, rms": "rms_ratio",
    "PSNR": "psnr",
    "choosing the prior, s": "seconds",
}
DRAWS = (2, 4, 16)


def tables() -> Iterator[str]:
    """In the order of the page."""
    yield designs()
    for name in ("ct-table", "ct-table-128", "ct-table-128-16"):
        yield error_bars(name)
        yield histogram(name)
    yield steps_of_em()
    yield volumes()


def designs() -> str:
    """PSNR over equidistant angles, paired by image."""
    lines = []
    for design, called in DESIGNS.items():
        verdict = f"{design} over equidistant, dB"
        found = [row("ct-design", verdict=verdict, angles=angles) for angles in ANGLES]
        lines.append([called, *(difference(each["more"], each["more_stderr"], 2) for each in found)])
    return grid({"design": "<"} | {f"{angles} angles": ">" for angles in ANGLES}, lines)


def error_bars(name: str) -> str:
    """Log densities of the true image and what else is scored, by method."""
    lines = []
    for method, called in METHODS.items():
        found = row(name, summary=True, method=method)
        shown = [mean_of(found, score) for score in SCORES.values()]
        if not found["seconds"]:
            shown[-1] = NOTHING
        lines.append([called, *shown])
    return grid({"method": "<"} | dict.fromkeys(SCORES, ">"), lines)


def histogram(name: str) -> str:
    """Shares of the pixels inside the object by |error| over standard deviation, mean over the seeds."""
    edges = [f"{half / 2:.1f}–{(half + 1) / 2:.1f}" for half in range(7)]
    lines = []
    for method, called in METHODS.items():
        found = [each["histogram"] for each in rows(name, method=method) if "histogram" in each]
        means = [sum(shares) / len(found) for shares in zip(*found, strict=True)]
        lines.append([called, *(fixed(abs(mean), 3) for mean in means)])
    lines.append(["normal", *(fixed(mean, 3) for mean in normal_shares())])
    return grid({r"\|error\| / sd": "<"} | dict.fromkeys([*edges, "more"], ">"), lines)


def normal_shares() -> list[float]:
    """What a normal distribution has in each bin of the histogram."""
    below = [math.erf(half / 2 / math.sqrt(2)) for half in range(8)]
    return [upper - lower for lower, upper in pairwise(below)] + [1 - below[-1]]


def steps_of_em() -> str:
    """The precision of the g-prior of the rays after every step of expectation maximisation, by draws."""
    lines = []
    for each in rows("ct-table", method="g-prior EM"):
        if "summary" in each:
            continue
        for draws in DRAWS:
            steps = ", ".join(f"{precision:.3g}" for precision in each[f"precisions_{draws}"])
            lines.append([str(each["seed"]), str(draws), steps, fixed(each[f"seconds_{draws}"], 1)])
    return grid({"seed": ">", "draws": ">", "precision, step by step": "<", "seconds": ">"}, lines)


def volumes() -> str:
    """Seconds and memory of expectation maximisation by descent."""
    heads = {"voxels": "<", "rays": ">", "fit, s": ">", "EM of at most three steps, two draws, s": ">"}
    heads |= {"four draws, s": ">", "memory of EM, MiB": ">"}
    lines = []
    for each in sorted(rows("ct-volume", part="volume"), key=lambda found: found["side"]):
        seconds = [significant(each[name]) for name in ("fit_seconds", "em_seconds", "draw_seconds")]
        size = [f"{each['side']}³", grouped_digits(each["rays"])]
        lines.append([*size, *seconds, fixed(each["em_mib"], 0)])
    return grid(heads, lines)
