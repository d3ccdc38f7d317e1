"""Numbers that the sources print, beside ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.report import Row
from studies.gp.table import PUBLISHED as UCI
from studies.pages.reports import NOTHING, RESULTS, estimate, fixed, grid, report, row, rows

REPORTS: dict[str, str] = {
    "hessian-free-table": "Hessian-free Laplace",
    "links": "networks with validation data",
    "gp-uci": "Gaussian processes on UCI sets",
    "gp-noise": "low noise",
    "ct-table-128-16": "tomography",
}
"""The reports that our numbers are from, and what each is of."""

DATA = ("Quadratic-Uniform", "Quadratic-Inbetween", "Sin-Uniform", "Sin-Inbetween")

HESSIAN_FREE = {
    "full Hessian": {
        "in": ((0.9375, -23.924), (0.9688, -23.290), (1.0, -75.764), (1.0, -73.178)),
        "out": ((0.9556, -38.027), (0.8667, -24.538), (0.8625, 26.004), (0.9250, 10.029)),
    },
    "GGN": {
        "in": ((0.9375, -23.790), (0.9688, -23.135), (1.0, -76.025), (1.0, -73.260)),
        "out": ((0.9556, -38.751), (0.8444, -23.504), (0.8250, 101.6), (0.8875, 24.903)),
    },
    "top eigenvectors": {
        "in": ((0.9375, -23.789), (0.9688, -23.098), (1.0, -77.027), (1.0, -73.785)),
        "out": ((0.9556, -38.760), (0.8444, -22.893), (0.8250, 109.7), (0.8875, 27.112)),
    },
    "pre-trained, mean": {
        "in": ((0.9375, -23.899), (0.8750, -22.571), (1.0, -75.245), (1.0, -63.218)),
        "out": ((0.9333, -38.440), (0.8444, -23.676), (0.8375, 45.483), (0.9250, 22.915)),
    },
}
"""PICP and NLL of table 1, in distribution and out of it, in the order of ``DATA``."""


@dataclass(frozen=True)
class Compared:
    """A published number and ours.

    Args:
        quantity: What it is of.
        published: As printed.
        ours: Measured here.
        place: Table or figure of the source.
    """

    quantity: str
    published: str
    ours: str
    place: str


def tables() -> Iterator[str]:
    """In the order of the page."""
    for compared in SOURCES:
        yield side_by_side(compared())
    yield where_from()


def side_by_side(compared: Iterator[Compared]) -> str:
    """The numbers of a source as a table."""
    heads = {"quantity": "<", "published": ">", "ours": ">", "in the source": "<"}
    return grid(heads, [[each.quantity, each.published, each.ours, each.place] for each in compared])


def noted(beginning: str) -> Iterator[Compared]:
    """What the reports of a name that begins so hold beside a printed number, see ``studies.published``."""
    for path in sorted(RESULTS.glob(f"{beginning}-*.json")):
        for each in rows(path.stem):
            if "published" in each:
                ours = NOTHING if each["ours"] is None else f"{each['ours']:.3g}".replace("-", "−")
                yield Compared(each["verdict"], f"{each['published']:g}".replace("-", "−"), ours, each["place"])


def full_covariance() -> Iterator[Compared]:
    """Spectra, products and draws of a precision that is never built."""
    yield from noted("full")


def ella() -> Iterator[Compared]:
    """CIFAR-10, the ResNet-20 of the source's authors."""
    network = "ella_resnet20"
    ours = {
        "plain network": row("links", summary=True, part=network, posterior="none", link="plain network"),
        "last layer": row("links", summary=True, part=network, posterior="last layer", link="chosen"),
        "KFAC, all weights": row("links", summary=True, part=network, posterior="KFAC", link="chosen"),
    }
    published = {"plain network": (0.282, 0.039), "last layer": (0.269, 0.034), "KFAC, all weights": (0.852, 0.467)}
    for name, found in ours.items():
        for score, value in zip(("nll", "ece"), published[name], strict=True):
            yield Compared(f"{name}, {score.upper()}", fixed(value, 3), fixed(found[score], 3), "table 1")
    yield from noted("ella")


def hessian_free() -> Iterator[Compared]:
    """The four data sets, PICP and NLL."""
    for method, by_shift in HESSIAN_FREE.items():
        for shift, printed in by_shift.items():
            for data, (picp, nll) in zip(DATA, printed, strict=True):
                found = row("hessian-free-table", summary=True, data=data, shift=shift, method=method)
                about = f"{data}, {shift} of distribution" if shift == "out" else f"{data}, in distribution"
                ours = estimate(found["picp"], found["picp_stderr"]), estimate(found["nll"], found["nll_stderr"])
                yield Compared(f"{method}: {about}, PICP", fixed(picp, 4), ours[0], "table 1")
                yield Compared(f"{method}: {about}, NLL", fixed(nll, 3), ours[1], "table 1")


def processes() -> Iterator[Compared]:
    """Regression on UCI sets, and with next to no noise."""
    for data, (rmse, nll) in UCI.items():
        found = row("gp-uci", summary=True, data=data)
        yield Compared(f"{data}, RMSE", fixed(rmse, 2), fixed(found["rmse"], 3), "table 4.3, SDD")
        yield Compared(f"{data}, NLL", fixed(nll, 2), fixed(found["nll"], 3), "table 4.3, SDD")
    low = {"pol": (0.13, 0.16), "elevators": (0.38, 0.68)}
    for data, printed in low.items():
        for method, value in zip(("SDD", "CG"), printed, strict=True):
            found = row("gp-noise", summary=True, data=data, noise="1e-06", method=method)
            called = {"SDD": "stochastic descent", "CG": "conjugate gradients"}[method]
            quantity = f"{data}, noise variance 1e-6, RMSE of {called}"
            yield Compared(quantity, fixed(value, 2), fixed(found["rmse"], 3), "table 4.2")


def tangent_models() -> Iterator[Compared]:
    """The evidence at the mode of the tangent model, and draws from its posterior."""
    yield from noted("sampled")


def tomography() -> Iterator[Compared]:
    """A walnut: log densities of the true image, and the seconds of two ways to choose the prior."""
    printed = {"MC dropout": (0.028, 2.474), "TV-PredCP": (2.214, 2.601), "g-prior of the image": (2.341, 2.869)}
    for method, densities in printed.items():
        found = row("ct-table-128-16", summary=True, method=method)
        for score, value in zip(("marginal", "patches"), densities, strict=True):
            about = {"marginal": "a pixel", "patches": "10 x 10 patches"}[score]
            ours = estimate(found[score], found[f"{score}_stderr"])
            yield Compared(f"{method}: log density, {about}", fixed(value, 3), ours, "table 7.1")
    seconds = {name: row("ct-table-128-16", summary=True, method=name)["seconds"] for name in printed}
    ratio = seconds["TV-PredCP"] / seconds["g-prior of the image"]
    yield Compared("seconds of TV-PredCP over those of EM", fixed(1260 / 12, 0), fixed(ratio, 0), "table 7.1")


def where_from() -> str:
    """Command and commit of each report."""
    others = [path.stem for begins in ("ella", "full", "sampled") for path in sorted(RESULTS.glob(f"{begins}-*.json"))]
    reports = REPORTS | {name: name.replace("-", ", ") for name in others}
    lines = [[called, f"`{name}.json`", f"`{command(name)}`", commits(name)] for name, called in reports.items()]
    return grid({"what": "<", "report": "<", "command": "<", "commit": "<"}, lines)


def command(name: str) -> str:
    """How a report was made: its command, of one put together that of the first part."""
    found = report(name)
    parts: list[Row] = [each["source"] for each in rows(name) if "source" in each]
    return str((parts[0] if parts else found)["command"])


def commits(name: str) -> str:
    """The commit, or the commits of the parts."""
    found = report(name)
    parts = [each["source"]["commit"] for each in rows(name) if "source" in each]
    return ", ".join(f"`{commit[:8]}`" for commit in dict.fromkeys(parts or [found["commit"]])) or NOTHING


SOURCES = (ella, full_covariance, hessian_free, processes, tangent_models, tomography)
"""In the order of the page."""
