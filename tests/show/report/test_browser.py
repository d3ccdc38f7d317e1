"""The page in a browser, headless Chromium: nothing is cut at the width of a desktop or of a phone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lapwing.comparison import Column, Comparison, Row
from lapwing.show.report import render

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=4000",
    "--dump-dom",
)

LOOK = """
<script>
const found = [];
let left = FRAMES;
function look(frame, width) {
  const page = frame.contentDocument;
  const inside = [...page.querySelectorAll("*")].filter(each => !each.closest(".scroll") || each.matches(".scroll"));
  const wide = inside.filter(each => each.getBoundingClientRect().right > width + 1).map(each => each.tagName);
  found.push({width, wide, whole: page.documentElement.scrollWidth});
  left -= 1;
  if (left === 0) document.title = "found " + JSON.stringify(found);
}
</script>
"""


def many_columns() -> Comparison:
    """A table wider than a desktop: long names, twelve columns."""
    columns = tuple(Column(f"c{k}", f"a column's long name {k}", "lower", ".4f", "of nothing") for k in range(12))
    rows = tuple(
        Row(f"a method of a long name, number {k}", "validation", ({f"c{j}": 1.2345 * (k + j) for j in range(12)},) * 2)
        for k in range(6)
    )
    return Comparison(rows, columns)


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_nothing_is_wider_than_the_page_and_nothing_comes_from_outside(tmp_path: Path) -> None:
    picture = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1200 300"><rect width="1200" height="300"/></svg>'
    (tmp_path / "wide.svg").write_text(picture)
    figure = {"file": "wide.svg", "title": "Wide", "caption": "A picture.", "wide": True}
    finding = {"claim": "A long claim " * 12, "holds": False, "difference": 0.001, "stderr": 0.001}
    text = ["A sentence with_a_name_that_is_long " * 9]
    words = {"title": "Title " * 8, "text": text, "figures": [figure], "findings": [finding]}
    page = render(words | many_columns().to_dict(), tmp_path)
    assert "<script" not in page and not re.findall(r"""(?:src|href)=["'](?!data:|#)""", page)
    widths = (1280, 390)
    frames = [
        f'<iframe style="border:0" width="{width}" height="900" onload="look(this, {width})" '
        f'srcdoc="{html.escape(page)}"></iframe>'
        for width in widths
    ]
    looked = tmp_path / "look.html"
    looked.write_text(LOOK.replace("FRAMES", str(len(widths))) + "".join(frames), encoding="utf-8")
    words_of_browser = [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", looked.as_uri()]
    ran = subprocess.run(words_of_browser, capture_output=True, text=True, timeout=120, check=True)
    told = re.search(r"<title>found (.*?)</title>", ran.stdout)
    assert told, ran.stderr
    found = {each["width"]: each for each in json.loads(html.unescape(told[1]))}
    assert set(found) == set(widths)
    for width, each in found.items():
        assert each["wide"] == [] and each["whole"] <= width, each
