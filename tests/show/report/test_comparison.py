"""The page of a comparison."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from lapwing.comparison import Comparison, Examples, Row
from lapwing.ground.errors import ConfigError
from lapwing.show.report import comparison_page, render, write_comparison


def row(name: str, change: torch.Tensor, **numbers: float) -> Row:
    generator = torch.Generator().manual_seed(0)
    nll = torch.rand(60, generator=generator) + change
    confidence = torch.rand(60, generator=generator)
    values = {"nll": nll, "confidence": confidence, "correct": (confidence > 0.3).to(torch.uint8)}
    run = {"nll": float(nll.mean()), "accuracy": 0.7, "ece": 0.1, "fit_seconds": 1.0} | numbers
    return Row(name, "", (run,), examples=(Examples.of("0", 7, values),))


NOISY = 0.1 * torch.linspace(0, 30, 60).sin()


def compared(best: float) -> Comparison:
    rows = (row("plain network", torch.zeros(())), row("ours", best + NOISY), row("theirs", 0.2 + NOISY))
    return Comparison((*rows, Row("failed", "", (), "RuntimeError: raw")), reference=("plain network", ""))


def test_only_what_is_the_best_and_beyond_noise_is_marked(tmp_path: Path) -> None:
    marked = [
        re.findall(r'<td class="best">([^<]+)', render(comparison_page(compared(best), tmp_path), tmp_path))
        for best in (-0.2, -0.001)
    ]
    assert len(marked[0]) == 1 and marked[1] == []


def test_the_page_has_the_verdict_scores_costs_and_figures(tmp_path: Path) -> None:
    page = comparison_page(compared(-0.2), tmp_path, title="Mine", about={"commit": "abc"})
    titles = [figure["title"] for figure in page["figures"]]
    assert titles[0] == "Differences of NLL, nats"
    assert titles[-3:] == ["Calibration", "Risk against coverage", "Cost against quality"]
    assert json.loads(json.dumps(page)) == page
    out = write_comparison(compared(-0.2), tmp_path / "report.html", title="Mine", about={"commit": "abc"})
    text = out.read_text(encoding="utf-8")
    assert "Take ours: NLL" in text and "What each costs" in text and "RuntimeError: raw" in text and "abc" in text
    assert text.count("data:image/svg+xml") == len(titles)
    assert not re.search(r"https?://|<script", text)
    assert "overflow-x: auto" in text and re.search(r"[−+]0\.\d+ ± 0\.\d+", text)


def test_there_is_a_page_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert comparison_page(compared(-0.2), tmp_path)["figures"] == []


@pytest.mark.parametrize("kind", ["differences", "calibration", "risk", "cost"])
def test_a_figure_of_nothing_says_what_is_missing(kind: str) -> None:
    with pytest.raises(ConfigError, match="Got none"):
        Comparison((Row("ours", "", ()),)).plot(kind)  # type: ignore[arg-type]


def test_every_kind_of_figure_is_drawn_where_it_is_told() -> None:
    found = compared(-0.2)
    ax = found.plot("calibration")
    assert found.plot("risk", ax=ax) is ax
    assert found.plot("cost").get_xscale() == "log"
    assert len(found.plot().get_yticklabels()) == 2
    assert found.plot("calibration", bins=5).get_ylabel() == "accuracy − confidence"
