"""A page for each adapter, of at most one screen."""

from __future__ import annotations

from tests.integrations.pages import DOCS

SCREEN = 50
"""Lines."""


def test_every_page_is_at_most_a_screen() -> None:
    lines = {
        page.name: len(page.read_text(encoding="utf-8").splitlines()) for page in (DOCS / "integrations").glob("*.md")
    }
    assert len(lines) >= 8
    assert {name: count for name, count in lines.items() if count > SCREEN} == {}
