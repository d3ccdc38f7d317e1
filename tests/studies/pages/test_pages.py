"""The tables of the documentation are what the committed reports say."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from studies.pages import __main__ as pages
from studies.pages import published, reports
from studies.pages.reports import row


@pytest.mark.parametrize("name", pages.PAGES)
def test_tables_are_those_of_the_reports(name: str) -> None:
    assert pages.fresh(name) == (pages.ROOT / name).read_text(encoding="utf-8"), "run python -m studies.pages"


def test_a_number_changed_by_hand_is_found_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = (pages.ROOT / "docs/knowledge.md").read_text(encoding="utf-8")
    page = tmp_path / "docs/knowledge.md"
    page.parent.mkdir()
    page.write_text(right.replace("| mean | .8", "| mean | .9"), encoding="utf-8")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    assert pages.main(["--check", "docs/knowledge.md"]) == 1
    assert "would change" in capsys.readouterr().out
    assert pages.main(["docs/knowledge.md"]) == 0
    assert page.read_text(encoding="utf-8") == right
    assert pages.main(["--check", "docs/knowledge.md"]) == 0


def test_a_page_that_is_not_there_is_named() -> None:
    with pytest.raises(SystemExit):
        pages.main(["nothing.md"])


def test_thirty_published_numbers_stand_beside_ours() -> None:
    sources = (
        published.ella,
        published.full_covariance,
        published.hessian_free,
        published.processes,
        published.tangent_models,
        published.tomography,
    )
    compared = [each for source in sources for each in source()]
    numbers = [each for each in compared if any(digit.isdigit() for digit in each.ours)]
    assert len(numbers) == len(compared) >= 30


def test_a_row_that_is_not_in_a_report_is_named() -> None:
    with pytest.raises(LookupError, match=r"links\.json"):
        row("links", part="no such network")


def test_examples_of_numbers_as_text() -> None:
    found = doctest.testmod(reports)
    assert found.attempted >= 6 and found.failed == 0
