"""The page of a comparison: what to take, scores, what each method costs, and figures of differences in pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lapwing.comparison import Comparison
from lapwing.ground.errors import ConfigError
from lapwing.ground.files.atomic import replacing
from lapwing.show.report.page import render

NOISE = (
    "Numbers are those of the test data. Below an NLL is its difference from the reference on the same examples, with "
    "the standard error of the pair. A dagger says that a difference is within two of them: noise. Only what is the "
    "best and beyond noise is marked."
)
"""What the table's marks mean."""

CURVES = {
    "calibration": (
        "Calibration",
        "Accuracy less confidence in bins of equally many examples, with binomial intervals of 95 %. A calibrated "
        "method is at 0.",
    ),
    "risk": ("Risk against coverage", "Errors among what is kept, the surest first."),
}


def comparison_page(
    comparison: Comparison, folder: Path, *, title: str = "Methods side by side", about: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a page of a comparison says, as ``write_json`` takes it; its figures are drawn in ``folder / "figures"``.

    Args:
        comparison: What ``compare`` returned.
        folder: Where figures go; none are drawn without ``matplotlib``.
        title: Title of the page.
        about: What is told at its foot.
    """
    scores = tuple(column for column in comparison.known if column.spread)
    costs = tuple(column for column in comparison.known if not column.spread)
    results: dict[str, Any] = {"title": title, "text": [NOISE] if comparison.differs else []}
    results |= replace(comparison, known=scores).to_dict()
    results["figures"] = figures(comparison, folder)
    results["about"] = dict(about or {})
    ran = tuple(row for row in comparison.rows if row.runs)
    of_costs = replace(comparison, rows=ran, known=costs)
    if of_costs.columns:
        order = [row.method for row in comparison.ranked]
        ranked = sorted(ran, key=lambda row: order.index(row.method))
        section = Comparison(tuple(ranked), costs).to_dict()
        results["sections"] = [{"title": "What each costs", "heading": "Seconds and bytes"} | section]
    return results


def figures(comparison: Comparison, folder: Path) -> list[dict[str, Any]]:
    """The figures there can be, drawn, with what the page says of them."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    shown = list[dict[str, Any]]()
    for column in paired_columns(comparison):
        words = comparison.column(column)
        title = f"Differences of {words.label}"
        caption = "Each method less the reference, with two paired standard errors; filled where it is beyond noise."
        _draw(comparison, folder, shown, title, caption, f"differences-{len(shown)}", column=column)
    for kind, (title, caption) in CURVES.items():
        _draw(comparison, folder, shown, title, caption, kind, kind=kind)
    caption = "NLL against seconds, with two standard errors of the difference; filled where it is beyond noise."
    _draw(comparison, folder, shown, "Cost against quality", caption, "cost", kind="cost")
    return shown


def paired_columns(comparison: Comparison) -> list[str]:
    """Scores of which there are differences, the NLL first."""
    names = [column.name for column in comparison.columns]
    known = [name for name in names if any(comparison.difference(row, name) for row in comparison.rows)]
    return sorted(known, key=lambda name: name != "nll")


def _draw(
    comparison: Comparison,
    folder: Path,
    shown: list[dict[str, Any]],
    title: str,
    caption: str,
    name: str,
    **options: Any,
) -> None:
    """Add a figure, where there is what it shows."""
    try:
        ax: Any = comparison.plot(**options)
    except ConfigError:
        return
    file = f"figures/{name}.svg"
    ax.figure.savefig(folder / file, transparent=True)
    shown.append({"file": file, "title": title, "caption": caption, "wide": False})


def write_comparison(
    comparison: Comparison,
    path: str | PathLike[str],
    *,
    title: str = "Methods side by side",
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write one self-contained page of a comparison.

    Args:
        comparison: What ``compare`` returned.
        path: Where to.
        title: Title of the page.
        about: What is told at its foot.

    Returns:
        Where the page is.

    Raises:
        ConfigError: If ``jinja2`` is not installed.

    Example:
        >>> import tempfile
        >>> from lapwing.comparison import Row
        >>> page = Path(tempfile.mkdtemp()) / "report.html"
        >>> write_comparison(Comparison((Row("KFAC", "", ({"nll": 0.5},)),)), page).name
        'report.html'
    """
    out = Path(path)
    with TemporaryDirectory() as drawn:
        page = render(comparison_page(comparison, Path(drawn), title=title, about=about), Path(drawn))
    with replacing(out) as draft:
        draft.write_text(page, encoding="utf-8")
    return out
