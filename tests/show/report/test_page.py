from __future__ import annotations

import base64
import builtins
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lapwing.comparison import Comparison, Row
from lapwing.ground.errors import ConfigError, DataError
from lapwing.show.report import page, render, write_json, write_report

ROWS = (
    Row("plain network", "", ({"accuracy": 0.9, "nll": 0.51}, {"accuracy": 0.8, "nll": 0.49})),
    Row("KFAC", "default", ({"accuracy": 0.9, "nll": 0.3, "evidence": -20.0}, {"accuracy": 0.9, "nll": 0.2})),
    Row("<full>", "default", (), "Expected less. Got more. Try KFAC."),
)
RESULTS = Comparison(ROWS).to_dict()
DOT = b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>'


class Page(HTMLParser):
    """The tags of a page, the cells of its tables, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "table" in self.open and self.open[-1] in ("td", "th", "small"):
            self.cells[-1][-1] += data.strip() + " " * (self.open[-1] != "small")

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_table_holds_the_numbers() -> None:
    page = Page(render(RESULTS, Path()))
    assert page.open == []
    assert page.cells == [
        ["method ", "accuracy ↑ ", "NLL, nats ↓ ", "log evidence, nats "],
        ["plain network ", "0.850 ± 0.050", "0.500 ± 0.010", "– "],
        ["KFAC by default", "0.900 ± 0.000", "0.250 ± 0.050", "−20 "],
        ["<full> by default", "Expected less. Got more. Try KFAC. "],
    ]


def test_the_best_of_each_column_is_marked() -> None:
    best = re.findall(r'<td class="best">([^<]+)', render(RESULTS, Path()))
    assert best == [
        "0.250"
    ]  # none for the accuracy, within noise, nor for the evidence, which no method should maximise
    alone = {
        "columns": RESULTS["columns"],
        "rows": Comparison(tuple(Row(r.method, "", r.runs[:1]) for r in ROWS)).to_dict()["rows"],
    }
    assert re.findall(r'<td class="best">([^<]+)', render(alone, Path())) == ["0.300"]  # as many share the accuracy


def test_rows_to_which_tuning_added_nothing_are_one_and_said_to_be_so() -> None:
    runs = {"plain network": {}, "KFAC": {"fit_seconds": 0.5}, "full": {"fit_seconds": 2.0}, "diagonal": {"nll": 0.3}}
    rows = [
        Row(name, "default" if more else "", ({"nll": 0.5} | more,), certain="fit_seconds" in more)
        for name, more in runs.items()
    ]
    text = render(Comparison(tuple(rows)).to_dict(), Path())
    assert "KFAC, full by default: probabilities are the network&#39;s own; error bars are at" in text
    assert Page(text).cells[1:] == [
        ["plain network, KFAC, full by default", "0.500 ", "0.50 to 2.00 "],
        ["diagonal by default", "0.300 ", "– "],
    ]


def test_the_page_is_whole_in_itself(tmp_path: Path) -> None:
    (tmp_path / "dot.svg").write_bytes(DOT)
    figures = [{"file": "dot.svg", "title": "A dot", "caption": "It is small."}]
    write_json(RESULTS | {"figures": figures, "sections": [RESULTS | {"title": "Second"}]}, tmp_path / "results.json")
    path = write_report(tmp_path / "results.json")
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    (image,) = page.all("img")
    assert base64.b64decode(str(image["src"]).removeprefix("data:image/svg+xml;base64,")) == DOT
    assert image["alt"] == "A dot. It is small."
    assert [link["href"] for link in page.all("a")] == ["#section-1", "#section-2"]
    assert {"section-1", "section-2"} <= {section.get("id") for section in page.all("section")}
    assert not re.search(r"https?://|<script|<link|url\(", text)
    assert path == tmp_path / "report.html"


def test_text_is_escaped() -> None:
    assert "<script>" not in render(RESULTS | {"title": "<script>", "text": ["<script>"]}, Path())


def test_findings_say_whether_they_hold() -> None:
    found = [
        {"claim": "It works", "difference": -0.25, "stderr": 0.01, "holds": True},
        {"claim": "It always does", "difference": 0.5, "stderr": None, "holds": False},
        {"claim": "It hardly does", "difference": -0.00004, "stderr": 0.0021, "holds": False},
    ]
    text = render(RESULTS | {"findings": found, "asked": "Three claims"}, Path())
    assert "<h3>Three claims</h3>" in text
    assert re.findall(r"[✓✗≈]", text) == ["✓", "✗", "≈"]
    assert "−0.250 ± 0.010" in text and "difference 0.0000 ± 0.0021" in text
    assert "+0.5, one seed" in text


def test_the_page_goes_where_it_is_told(tmp_path: Path) -> None:
    write_json(RESULTS, tmp_path / "deep" / "results.json")
    assert (
        write_report(tmp_path / "deep" / "results.json", tmp_path / "mine.html")
        .read_text()
        .startswith("<!doctype html>")
    )
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["results.json"]  # no draft is left


@pytest.mark.parametrize("content", [None, "no JSON", "[]", "{}", '{"rows": 3}', '{"rows": []}'])
def test_what_is_no_result_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "results.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=r"Try .*lapwing compare") as info:
        write_report(path)
    assert "Errno" not in str(info.value)


@pytest.mark.parametrize("name", ["none.svg", "results.json", "folder.svg", "a\0.svg"])
def test_a_figure_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.svg").mkdir()
    write_json(RESULTS | {"figures": [{"file": name, "title": "", "caption": ""}]}, tmp_path / "results.json")
    with pytest.raises(DataError, match=name.replace("\0", r"\\x00")):
        write_report(tmp_path / "results.json")


def test_a_figure_outside_the_folder_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "secret.svg").write_text("<svg/>")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link.svg").symlink_to(tmp_path / "secret.svg")
    for name in ("../secret.svg", str(tmp_path / "secret.svg"), "link.svg"):
        write_json(RESULTS | {"figures": [{"file": name, "title": "", "caption": ""}]}, tmp_path / "in" / "a.json")
        with pytest.raises(DataError, match="Expected a figure in"):
            write_report(tmp_path / "in" / "a.json")


def test_results_with_another_value_are_shown_or_refused(tmp_path: Path) -> None:
    claim = {"claim": "a", "holds": True, "difference": -0.2, "stderr": 0.1}
    full, refused = RESULTS | {"findings": [claim], "text": ["a"]}, 0
    for place in places(full):
        for value in (None, [], {}, 3, "a", 10**400, ".999999999f", [None], [{}]):
            try:
                page._section(changed(full, place, value), tmp_path)
            except DataError:
                refused += 1
    assert refused > 50
    for name in ("sections", "about"):
        for value in (3, "a", [3]):
            with pytest.raises(DataError):
                render(RESULTS | {name: value}, tmp_path)
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="a JSON file"):
        write_report(tmp_path / "a.json")


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of some JSON stand, the first of each list."""
    parts = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*at, key)
        yield from places(part, (*at, key))


def changed(results: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The same with another value at a place."""
    results = json.loads(json.dumps(results))
    inner = results
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return results


def test_without_jinja_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "jinja2":
            raise ImportError("No module named 'jinja2'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install '\.\[report\]'"):
        render(RESULTS, Path())
