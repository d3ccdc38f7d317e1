"""Full-covariance Laplace: spectra, products, draws and preconditioners."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from benchmarks.report import Row, grouped
from benchmarks.table import markdown, summarised
from studies.full import cost
from studies.full.quadrature import PUBLISHED
from studies.full.spectrum import gap
from studies.pages.reports import tables_of_studies
from studies.published import to_three_places


def tables() -> Iterator[str]:
    """In the order of the page."""
    yield from tables_of_studies("full", TABLES)


def of_spectrum(found: Sequence[Row]) -> Iterator[str]:
    """Effective ranks, and how far Lanczos is from the exact eigenvalues."""
    lines: list[Row] = []
    for row in found:
        line = {"filters": f"{row['kernel']} x {row['kernel']}"} | row | row.get("effective_rank", {})
        lines.append(line | {"gap": gap(torch.tensor(row["eigenvalues"]))})
    columns = {
        "filters": "filters",
        "images": "images",
        "largest": "largest",
        "condition": "condition number",
        "gap": "before the largest drop",
        "entropy": "entropy rank",
        "dimension": "effective dimension",
        "above_alpha": "above α",
        "lanczos": "resolved by Lanczos",
        "lanczos_error": "largest error",
    }
    yield markdown(lines, columns)


def of_cost(found: Sequence[Row]) -> Iterator[str]:
    """Milliseconds of products and solves of the source's problem, of ill-conditioned solves, and of networks."""
    quadratic = [row for row in found if row["problem"] == "quadratic"]
    plain = [row for row in quadratic if row.get("condition", 1.0) == 1.0]
    for operation, published in (("product", cost.PRODUCTS), ("solve", cost.SOLVES)):
        timed = [milliseconds(row) for row in plain if row["operation"] == operation]
        own = [row | {"published": f"{published[row['d']]:.2f}"} for row in timed]
        columns = {"d": f"weights, {operation}"} | TIMED | {"published": "published ratio"}
        yield markdown(own, columns)
    ill = [milliseconds(row) for row in quadratic if row.get("condition", 1.0) > 1.0]
    yield markdown(ill, {"d": "weights", "condition": "condition number", "iterations": "iterations"} | RATIO)
    networks = [milliseconds(row) for row in found if row["problem"] == "network"]
    yield markdown(networks, {"d": "weights of a perceptron", "gradient": "gradient, ms"} | RATIO)


RATIO = {"gvp": "GVP, ms", "hvp": "HVP, ms", "hvp_over_gvp": "ratio"}
TIMED = {"gvp": "GVP, ms", "hvp": "HVP, ms", "explicit": "explicit, ms", "hvp_over_gvp": "ratio"}


def milliseconds(row: Row) -> Row:
    """A row with its seconds in thousandths, its ratio to two places, a word where the explicit matrix was refused."""
    times = {
        name: 1e3 * row[f"{name}_seconds"]
        for name in ("gvp", "hvp", "explicit", "gradient")
        if f"{name}_seconds" in row
    }
    refused = {"explicit": "refused"} if "explicit_failure" in row else {}
    return row | times | refused | {"hvp_over_gvp": f"{row['hvp_over_gvp']:.2f}"}


def of_quadrature(found: Sequence[Row]) -> Iterator[str]:
    """P-values by points, of exact solves, the source's solver and the library's, beside the source's."""
    lines: list[Row] = []
    for points, own in grouped(found, "points").items():
        line: Row = {"points": points, "published": f"{PUBLISHED[points]:.4f}" if points in PUBLISHED else None}
        for row in own:
            name = row["solves"]
            line |= {
                f"{name}_p": row.get("ks_p"),
                f"{name}_stiff": row.get("stiff_p"),
                f"{name}_seconds": row.get("seconds"),
            }
        lines.append(line)
    columns = {
        "points": "points",
        "exact_p": "p, exact solves",
        "exact_stiff": "stiff directions",
        "MINRES_p": "p, MINRES",
        "MINRES_stiff": "stiff directions",
        "MINRES_seconds": "s",
        "CG_p": "p, CG, 50 eigenpairs",
        "CG_stiff": "stiff directions",
        "CG_seconds": "s",
        "published": "published p",
    }
    yield markdown(lines, columns)


def of_sine(found: Sequence[Row]) -> Iterator[str]:
    """Means over the seeds, and the test of the draws."""
    means = list(summarised(row for row in found if "seed" in row))
    columns = {
        "part": "prior precision",
        "std_sides": "std near data",
        "std_gap": "in the gap",
        "std_beyond": "beyond",
        "off_least_squares": "off least squares",
        "nll_sides": "NLL near data",
        "nll_gap": "NLL in the gap",
        "nll_gap_linearised": "linearised",
    }
    yield markdown(means, columns)
    drawn = [row for row in found if "ks_p" in row]
    columns = {"part": "which", "draws": "draws", "ks_p": "p", "qq_error": "quantiles off by", "passed": "passed"}
    yield markdown(drawn, columns)


def of_digits(found: Sequence[Row]) -> Iterator[str]:
    """What the draws are, and how every way predicts."""
    drawn = [row for row in found if row["method"] == "draws"]
    columns = {
        "alpha": "α of the draws",
        "draws": "draws",
        "ks_p": "p of the distances",
        "qq_error": "quantiles off by",
        "passed": "passed",
        "seconds_drawing": "s",
    }
    yield markdown(drawn, columns)
    scored = [to_three_places(row, "accuracy", "nll", "ece") for row in found if row["method"] != "draws"]
    yield markdown(scored, {"method": "method", "alpha": "α", "accuracy": "accuracy", "nll": "NLL", "ece": "ECE"})


def of_preconditioners(found: Sequence[Row]) -> Iterator[str]:
    """What each costs, and what it saves."""
    columns = {
        "preconditioner": "preconditioner",
        "condition": "condition number",
        "iterations": "iterations",
        "seconds_preparing": "s to make",
        "seconds_solving": "s to solve",
        "error": "error",
    }
    yield markdown(found, columns)


TABLES: Mapping[str, Callable[[Sequence[Row]], Iterator[str]]] = {
    "spectrum": of_spectrum,
    "cost": of_cost,
    "quadrature": of_quadrature,
    "sine": of_sine,
    "digits": of_digits,
    "preconditioners": of_preconditioners,
}
