"""ELLA: early stopping, rank, shifted images, landmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.report import Row, grouped
from benchmarks.table import markdown, summarised
from lapwing.evaluation.corruptions import SEVERITIES
from studies.ella.growth import VARIANCES
from studies.ella.shifted import PUBLISHED, SHOWN, shift_name
from studies.pages.reports import difference, tables_of_studies
from studies.published import to_three_places


def tables() -> Iterator[str]:
    """In the order of the page."""
    yield from tables_of_studies("ella", TABLES)


def of_ablation(found: Sequence[Row]) -> Iterator[str]:
    """Errors by landmarks at two ranks, and by rank."""
    errors = {"eps_nystrom": "ε Nyström", "eps_ella": "ε ELLA", "eps_residual": "with the residual"}
    for part, own in grouped(summarised(found), "part").items():
        name = "rank" if part == "rank" else "landmarks"
        yield markdown(own, {name: HEADINGS[part]} | errors)


HEADINGS = {
    "landmarks, fixed rank": "landmarks M, rank 20",
    "landmarks, rank as many": "landmarks M, rank M",
    "rank": "rank K, 500 landmarks",
}


def of_stopping(found: Sequence[Row]) -> Iterator[str]:
    """NLL and ECE by images and prior variance, and those of early stopping."""
    grid = [row for row in found if row["part"] == "grid"]
    lines: list[Row] = []
    for images, own in grouped(grid, "training_images").items():
        line: Row = {"images": images}
        for row in own:
            line[f"{row['variance']:g}"] = f"{row['nll']:.3f} {row['ece']:.3f}"
        lines.append(line)
    yield markdown(lines, {"images": "images in G"} | {f"{v:g}": f"σ₀² = {v:g}" for v in VARIANCES})
    others = [row for row in found if row["part"] != "grid"]
    columns = {"part": "method", "stopped_at": "images in G", "nll": "NLL", "ece": "ECE", "accuracy": "accuracy"}
    yield markdown([to_three_places(row, "nll", "ece", "accuracy") for row in others], columns)


def of_rank(found: Sequence[Row]) -> Iterator[str]:
    """Scores by rank."""
    columns = {"rank": "K", "stopped_at": "images in G", "nll": "NLL", "ece": "ECE", "nll_all": "NLL, all images"}
    yield markdown([to_three_places(row, "nll", "ece", "nll_all") for row in found], columns)


def of_shifted(found: Sequence[Row]) -> Iterator[str]:
    """Scores on test images beside those of the source, at each severity, and with images from elsewhere."""
    lines: list[Row] = []
    for row in found:
        line = to_three_places(row, "nll", "ece", "accuracy")
        if "difference_error" in row:
            line["difference"] = difference(row["difference"], row["difference_error"], 3)
        for score in ("nll", "ece"):
            value = PUBLISHED.get((row["method"], score))
            line[f"{score}_published"] = None if value is None else f"{value:.3f}"
        lines.append(line)
    columns = {"method": "method", "nll": "NLL", "difference": "less that of temperature scaling", "ece": "ECE"}
    columns |= {"accuracy": "accuracy", "nll_published": "published NLL", "ece_published": "published ECE"}
    yield markdown(lines, columns)
    scored = [row for row in found if "nll" in row]
    for score, word in (("nll", "NLL"), ("ece", "ECE")):
        names = {f"{score}:{shift_name(k)}": f"{k}" for k in (0, *SEVERITIES)}
        columns = {"method": f"{word} at severity"} | names
        yield markdown([to_three_places(row, *names) for row in scored], columns)
    names = ["auroc", *(f"error_{t:g}" for t in SHOWN), *(f"share_{t:g}" for t in SHOWN)]
    columns = {"method": "method, a quarter from elsewhere", "auroc": "AUROC"}
    columns |= {f"error_{t:g}": f"error, τ = {t:g}" for t in SHOWN}
    columns |= {f"share_{t:g}": f"kept, τ = {t:g}" for t in SHOWN}
    yield markdown([to_three_places(row, *names) for row in scored], columns)


TABLES: Mapping[str, Callable[[Sequence[Row]], Iterator[str]]] = {
    "ablation": of_ablation,
    "stopping": of_stopping,
    "rank": of_rank,
    "shifted": of_shifted,
}
