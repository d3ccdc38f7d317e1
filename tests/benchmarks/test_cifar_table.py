"""The CIFAR-10 page says what the scores are, and compares each with the plain network on the same images."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cifar_table import Score, page, rows, table

LABELS = torch.tensor([0, 1, 1])
PLAIN = Score("resnet20", "plain", "", None, torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.8, 0.2]]), {"predict": 0.5})
KFAC = Score(
    "resnet20",
    "KFAC",
    "validation",
    12.5,
    torch.tensor([[0.8, 0.2], [0.4, 0.6], [0.6, 0.4]]),
    {"fit": 3.0, "tune": 1.0, "predict": 2.0},
)


def test_rows_compare_every_score_with_the_plain_network() -> None:
    found = {(row.work, row.quantity): row for row in rows([PLAIN, KFAC], LABELS)}
    nll = found["resnet20/KFAC/validation", "nll"]
    assert nll.ours == pytest.approx(-torch.tensor([0.8, 0.6, 0.4]).log().mean().item())
    assert nll.peer == pytest.approx(-torch.tensor([0.9, 0.6, 0.2]).log().mean().item())
    assert found["resnet20/KFAC/validation/fit", "seconds"].ours == 3.0
    assert found["resnet20/KFAC/validation", "prior_precision"].ours == 12.5
    assert found["resnet20/plain", "accuracy"].ratio == 1.0


def test_the_table_marks_the_best_and_shows_the_paired_difference() -> None:
    _, _, plain, kfac = table([PLAIN, KFAC], LABELS).splitlines()
    change = torch.tensor([0.9 / 0.8, 1.0, 0.2 / 0.4], dtype=torch.float64).log()
    assert f"{change.mean():+.4f} ± {change.std() / 3**0.5:.4f}" in kfac
    assert "**" in kfac.split("|")[5] and "**" not in plain.split("|")[5]
    assert kfac.split("|")[3].strip() == "12.5" and "| – | – | 0.50 |" in plain


def test_the_page_names_the_command_that_made_it() -> None:
    text = page({"resnet20": "TABLE"}, command="python -m benchmarks.cifar_table --data DIR", count=512)
    assert "`python -m benchmarks.cifar_table --data DIR`" in text and "TABLE" in text and "512" in text
