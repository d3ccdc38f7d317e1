"""From ``results.json`` to a page that needs nothing but itself."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, final

from lapwing.comparison import Column, alike, networks_own, span
from lapwing.ground.errors import ConfigError, DataError
from lapwing.ground.files.atomic import replacing
from lapwing.ground.files.records import Records
from lapwing.ground.results import signed
from lapwing.ground.version import with_extra

FORMAT = re.compile(r"\.[0-9]?[efg]")
"""How a table may write a number."""

KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
"""Pictures a page can hold."""


def write_report(results: Path, out: Path | None = None) -> Path:
    """Write the page of a results file; figures are inlined, nothing is linked.

    Args:
        results: A file that ``write_json`` wrote; see ``render``.
        out: Where to; ``None`` puts ``report.html`` beside it.

    Returns:
        Where the page is.

    Raises:
        DataError: If the file is missing, is no JSON, has no rows, or names a figure that is not there.
        ConfigError: If ``jinja2`` is not installed.
    """
    try:
        content = json.loads(results.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        said = f"{results}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise DataError("a JSON file of results", said, "lapwing compare, which writes one") from error
    page = render(content, results.parent)
    out = out or results.with_name("report.html")
    with replacing(out) as draft:
        draft.write_text(page, encoding="utf-8")
    return out


def render(results: Any, folder: Path) -> str:
    """The page of some results, as text.

    Args:
        results: What ``Comparison.to_dict`` gives and, as wished, a ``title``, paragraphs of ``text``, ``findings``,
            what is ``asked`` above them, ``figures`` (``file`` relative to the folder, ``title``, ``caption``), further
            ``sections`` of these, and ``about``, a mapping for the foot of the page.
        folder: Where figures are.

    Raises:
        DataError: If there are no rows, or a figure is not there.
        ConfigError: If ``jinja2`` is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise ConfigError("jinja2, to make the page", str(error), with_extra("report")) from error
    if not isinstance(results, Mapping) or not isinstance(results.get("rows"), list) or not results["rows"]:
        raise DataError("results with rows", _outline(results), "a results.json of lapwing compare or of the demo")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files("lapwing.show.report").joinpath("page.html").read_text(encoding="utf-8"))
    others = Records().read(tuple[dict[str, Any], ...], results.get("sections", []), "sections")
    about = Records().read(dict[str, Any], results.get("about", {}), "about")
    sections = [_section(part, folder) for part in (results, *others)]
    return template.render(sections=sections, about=about)


@final
@dataclass(frozen=True)
class Gap:
    """What a number is less that of the reference, on the same examples."""

    value: float | None = None
    stderr: float | None = None
    noise: bool = True


@final
@dataclass(frozen=True)
class Number:
    """A number of a row, with its standard error where it has one, and its difference from the reference."""

    mean: float | None = None
    stderr: float | None = None
    difference: Gap | None = None


@final
@dataclass(frozen=True)
class RowWords:
    """What a row has beside its numbers."""

    method: str
    tuned_by: str | None
    note: str | None = None
    certain: bool = False


@final
@dataclass(frozen=True)
class Claim:
    """A finding."""

    claim: str
    holds: bool
    difference: float
    stderr: float | None = None

    @property
    def even(self) -> bool:
        """Whether the difference is noise, within two standard errors: nothing is told apart."""
        return self.stderr is not None and abs(self.difference) <= 2 * self.stderr

    @property
    def told(self) -> str:
        """The difference as it is written."""
        return signed(self.difference, self.stderr) + (", one seed" if self.stderr is None else "")


@final
@dataclass(frozen=True)
class Picture:
    """A figure."""

    file: str
    title: str
    caption: str
    wide: bool = False


@final
@dataclass(frozen=True)
class Section:
    """A section of a results file.

    Args:
        columns: Of its table.
        rows: Of its table.
        title: Of the section.
        text: Paragraphs.
        findings: Claims, and whether they hold.
        figures: Below the table.
        reference: The row from which others differ.
        verdict: What to take.
        heading: Above the table.
        asked: Above the findings.
        rows_are: What a row is: a method, a column, an angle.
    """

    columns: tuple[Column, ...]
    rows: tuple[dict[str, Any], ...]
    title: str = "Methods side by side"
    text: tuple[str, ...] = ()
    findings: tuple[Claim, ...] = ()
    figures: tuple[Picture, ...] = ()
    reference: tuple[str, ...] = ()
    verdict: str = ""
    heading: str = "Every method"
    asked: str = "What came of it"
    rows_are: str = "method"


def _section(part: Any, folder: Path) -> dict[str, Any]:
    """A section as the template takes it.

    Raises:
        DataError: If there is anything in it that a page cannot show.
    """
    section: Section = Records().read(Section, part, "results")
    for column in section.columns:
        if not FORMAT.fullmatch(column.format):
            raise DataError("a format of numbers such as '.3f'", f"{column.format!r:.40}", "the lapwing that wrote it")
    columns = [column for column in section.columns if column.tabled]
    numbers = [[_number(row, column, f"rows.{i}") for column in columns] for i, row in enumerate(section.rows)]
    best = [_best(column, [row[k] for row in numbers]) for k, column in enumerate(columns)]
    rows: list[dict[str, Any]] = []
    for i, (given, own) in enumerate(zip(section.rows, numbers, strict=True)):
        row: RowWords = Records().read(RowWords, given, f"rows.{i}")
        cells = [_cell(*each) for each in zip(columns, own, best, strict=True)]
        if section.reference:
            cells = [_paired(*each) for each in zip(cells, columns, own, strict=True)]
        note = "" if any(number.mean is not None for number in own) else row.note
        rows.append(asdict(row) | {"note": note, "cells": cells, "baseline": not given.get("fit_seconds")})
    certain = [(row["method"], row["tuned_by"] or "nothing") for row in rows if row["certain"]]
    if certain:
        rows = [_together([rows[place] for place in places], columns) for places in alike(_texts(rows), columns)]
    figures = [asdict(figure) | {"source": _inlined(folder, figure.file)} for figure in section.figures]
    return {
        "title": section.title,
        "text": section.text,
        "verdict": section.verdict,
        "findings": section.findings,
        "heading": section.heading,
        "asked": section.asked,
        "rows_are": section.rows_are,
        "columns": columns,
        "certain": networks_own(certain) if certain else "",
        "rows": rows,
        "figures": figures,
    }


def _texts(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The numbers of rows as they are written, with their spread."""
    return [[f"{cell['text']} {cell['spread']}".strip() for cell in row["cells"]] for row in rows]


def _together(rows: Sequence[dict[str, Any]], columns: Sequence[Column]) -> dict[str, Any]:
    """One row of several whose scores are the same; other numbers may be from one to another."""
    first = rows[0]
    if len(rows) == 1:
        return first
    cells = list[dict[str, Any]]()
    for column, *same in zip(columns, *(row["cells"] for row in rows), strict=True):
        text = same[0]["text"] if column.spread else span([cell["text"] for cell in same])
        cells.append(same[0] | {"text": text})
    methods = ", ".join(dict.fromkeys(row["method"] for row in rows))
    tuned_by = ", ".join(dict.fromkeys(row["tuned_by"] for row in rows if row["tuned_by"]))
    baseline = all(row["baseline"] for row in rows)
    return first | {"method": methods, "tuned_by": tuned_by, "cells": cells, "baseline": baseline}


def _number(row: Mapping[str, Any], column: Column, at: str) -> Number:
    return Records().read(Number | None, row.get(column.name), f"{at}.{column.name}") or Number()


def _cell(column: Column, number: Number, best: str | None) -> dict[str, Any]:
    """A number as it is written, with its spread, and whether it is the best."""
    if number.mean is None:
        return {"text": "–", "spread": "", "best": False}
    text = column.write(number.mean)
    spread = f"± {column.write(number.stderr)}" if column.spread and number.stderr is not None else ""
    return {"text": text, "spread": spread, "best": text == best}


def _paired(cell: dict[str, Any], column: Column, number: Number) -> dict[str, Any]:
    """A cell beside a reference: marked only where it is the best beyond noise, with a dagger where it is noise."""
    gap = number.difference
    if gap is None or gap.value is None or gap.stderr is None:
        return cell | {"best": False}
    dagger = " †" if gap.noise else ""
    if column.name != "nll":
        return cell | {"text": cell["text"] + dagger, "best": cell["best"] and not gap.noise}
    value = f"{gap.value:+z{column.format}}".replace("-", "−")
    spread = f"{value} ± {column.write(gap.stderr)}{dagger}"
    return cell | {"spread": spread, "best": cell["best"] and not gap.noise}


def _best(column: Column, numbers: Sequence[Number]) -> str | None:
    """The best score of a column as it is written; ``None`` for costs, where most rows share it, and within noise."""
    known = [number for number in numbers if number.mean is not None]
    if column.better == "neither" or not column.spread or not known:
        return None
    ranked = sorted(known, key=lambda number: number.mean or 0.0, reverse=column.better == "higher")
    text = column.write(ranked[0].mean or 0.0)
    alike = [number for number in known if column.write(number.mean or 0.0) == text]
    others = ranked[len(alike) :]
    if 2 * len(alike) > len(known) or (others and _noise(ranked[0], others[0])):
        return None
    return text


def _noise(one: Number, other: Number) -> bool:
    """Whether two means are within two standard errors of each other, as if their runs had nothing in common."""
    if one.stderr is None or other.stderr is None:
        return False
    return abs((one.mean or 0.0) - (other.mean or 0.0)) <= 2 * math.hypot(one.stderr, other.stderr)


def _inlined(folder: Path, name: str) -> str:
    """A picture as a data URI."""
    path = folder / name
    if "\0" in name or not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(
            f"a figure in '{folder}'", f"{str(path)!r}", "a copy of it there, named relative to the JSON file"
        )
    if path.suffix not in KINDS or not path.is_file():
        raise DataError(f"a figure, {' or '.join(KINDS)}", f"{path}", "running make demo again, which draws them")
    return f"data:{KINDS[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def _outline(results: object) -> str:
    return f"keys {sorted(map(str, results))}" if isinstance(results, Mapping) else f"a {type(results).__name__}"
