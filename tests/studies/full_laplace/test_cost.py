from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.command import Setting
from benchmarks.measure import Step, merged
from benchmarks.meter import Meter
from lapwing.linear.gauss_newton import GGNProduct
from studies.full_laplace import cost
from studies.full_laplace.cost import measured, network, quadratic, shifted, summarised


@pytest.mark.parametrize("way", ["ggn", "hessian", "explicit"])
@pytest.mark.parametrize("condition", [1.0, 100.0])
def test_the_quadratic_has_the_stated_spectrum(way: str, condition: float) -> None:
    dense = quadratic(way, 9, condition, "cpu").dense()
    torch.testing.assert_close(dense, torch.diag(8 * torch.logspace(0, -torch.tensor(condition).log10().item(), 9)))


def test_the_network_has_about_the_weights_asked_for() -> None:
    for size in (10, 100, 1000, 10_000):
        _, _, d = network("ggn", size, "cpu")
        assert size / 2 < d < 2 * size
    gradient, product, d = network("ggn", 1000, "cpu")
    assert isinstance(product(1.0), GGNProduct) and sum(g.numel() for g in gradient()) == d


def test_a_shift_gives_the_condition_number() -> None:
    _, product, _ = network("ggn", 100, "cpu")
    eigenvalues = torch.linalg.eigvalsh(shifted(product(1.0), 1e3).dense().double())
    assert float(eigenvalues[-1] / eigenvalues[0]) == pytest.approx(1e3, rel=0.1)


def test_warm_ups_do_not_count_and_failures_are_told() -> None:
    steps = [
        Step("product", 9.0, 50.0, "warm-up", facts={"iterations": 7}),
        Step("product", 1.0, 2.0, "run 0"),
        Step("product", 3.0, 4.0, "run 1"),
        Step("solve at condition 100", 8.0, 1.0, "warm-up"),
        Step("solve at condition 100", None, None, "run 0", "stopped after 60 s"),
    ]
    product, solve = summarised(steps)
    assert (product["seconds"], product["runs"], product["peak_mib"]) == (2.0, 2, 4.0)
    assert product["seconds_std"] == pytest.approx(2**0.5) and product["iterations"] == 7
    assert (solve["condition"], solve["seconds"], solve["failure"]) == (100.0, None, "stopped after 60 s")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured runs here: that it can in a process of its own is tested with ``benchmarks.measure``."""

    def run_here(work: Callable[..., None], *, timeout: float, **options: Any) -> tuple[Step, ...]:
        reports = io.StringIO()
        work(Meter(reports), **options)
        return merged([json.loads(line) for line in reports.getvalue().splitlines()], None)

    monkeypatch.setattr(cost, "run_isolated", run_here)


@pytest.mark.usefixtures("here")
def test_the_explicit_form_fails_with_a_reason() -> None:
    found = measured(Setting(quick=True), "quadratic", "explicit", 1000)
    assert [(row["operation"], row["condition"]) for row in found] == [("build", None), ("product", None), ("solve", 1)]
    assert all("4,000,000 bytes" in row["failure"] and row["seconds"] is None for row in found)


@pytest.mark.usefixtures("here")
def test_a_quick_run_measures_products_and_solves() -> None:
    found = measured(Setting(quick=True), "quadratic", "hessian", 100)
    assert [(row["operation"], row["condition"]) for row in found] == [
        ("product", None),
        ("solve", 1.0),
        ("solve", 1e2),
    ]
    assert all(1 <= row["runs"] <= 2 and row["seconds"] > 0 and row["failure"] == "" for row in found)
    assert found[1]["iterations"] == 1 and found[2]["iterations"] > 10
