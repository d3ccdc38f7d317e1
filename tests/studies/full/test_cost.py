from __future__ import annotations

import math

import pytest
import torch

from benchmarks.command import Setting
from studies.full.cost import compared, of_network, products, quadratic, solves, verdict


@pytest.mark.parametrize("way", ["GVP", "HVP"])
@pytest.mark.parametrize("condition", [1.0, 100.0])
def test_the_quadratic_has_the_stated_spectrum(way: str, condition: float) -> None:
    dense = quadratic(way, 9, condition).dense()
    torch.testing.assert_close(dense, torch.diag(8 * torch.logspace(0, -math.log10(condition), 9)))


def test_a_way_that_fails_says_why_and_the_others_are_timed() -> None:
    def fails() -> None:
        raise MemoryError("no room")

    row = compared(
        Setting(quick=True), {"gvp": lambda: sum(range(1000)), "hvp": lambda: sum(range(10_000)), "x": fails}
    )
    assert row["x_failure"] == "MemoryError: no room" and "x_seconds" not in row
    assert row["runs"] == 2 and 0 < row["gvp_seconds"] < row["hvp_seconds"] and row["hvp_over_gvp"] > 1


def test_a_matrix_that_is_too_large_is_refused() -> None:
    row = products(Setting(quick=True), 20_000)
    assert "1,600,000,000 bytes" in row["explicit_failure"] and row["gvp_seconds"] > 0


def test_solves_take_the_steps_of_their_condition() -> None:
    assert solves(Setting(quick=True), 50, 1.0)["iterations"] == 1
    row = solves(Setting(quick=True), 50, 100.0)
    assert row["iterations"] > 10 and row["residual"] < 1e-5 and "explicit_seconds" not in row


def test_the_network_has_about_the_weights_asked_for() -> None:
    assert 500 < of_network(Setting(quick=True), 1000)["d"] < 2000


def test_only_the_source_s_own_problem_stands_beside_its_table() -> None:
    row = {"problem": "quadratic", "operation": "solve", "d": 100, "hvp_over_gvp": 1.1}
    found = [row | {"condition": 1.0}, row | {"condition": 100.0}, row | {"operation": "product"}]
    assert [each["published"] for each in verdict(found)] == [1.44, 2.51]
