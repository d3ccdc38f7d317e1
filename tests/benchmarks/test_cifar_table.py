"""The CIFAR-10 page says what the scores are, and compares each with the plain network on the same images."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cifar_table import draw, scored
from benchmarks.command import Setting
from benchmarks.tasks import Task


def test_a_row_has_the_paired_difference_from_the_plain_network() -> None:
    task = Task.read("resnet20", Setting())
    labels = task.test[1]
    generator = torch.Generator().manual_seed(0)
    plain, probs = (torch.rand(len(labels), 10, generator=generator).softmax(-1) for _ in range(2))
    row, own = scored(probs, plain, task), torch.arange(len(labels))
    change = (plain[own, labels].double() / probs[own, labels]).log()
    assert row["difference"] == pytest.approx(float(change.mean()))
    assert row["difference_stderr"] == pytest.approx(float(change.std()) / len(labels) ** 0.5)
    assert row["nll"] == pytest.approx(float(-probs[own, labels].log().mean()))
    assert "difference" not in scored(plain, plain, task)


def test_the_page_has_a_table_a_network() -> None:
    head = {"network": "resnet20", "images": 512}
    row = {"method": "KFAC", "tuned": "validation", "value": 12.5, "nll": 0.25, "difference": -0.5}
    text = draw([head | row | {"difference_stderr": 0.125}])
    assert "of 512 training images" in text and "## ResNet-20, zero-padded shortcuts" in text
    assert "| method | tuned | tuned to | NLL | NLL − plain |" in text
    assert "| KFAC | validation | 12.5 | 0.25 | -0.5 ± 0.12 |" in text
