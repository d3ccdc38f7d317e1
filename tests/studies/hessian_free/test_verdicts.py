from __future__ import annotations

from typing import Any

import pytest

from benchmarks.table import summarised
from studies.hessian_free import digits, table


def with_means(rows: list[dict[str, Any]], counts: tuple[str, ...]) -> list[dict[str, Any]]:
    return [*rows, *summarised(rows, counts)]


@pytest.mark.parametrize(("shift", "within"), [(0.9, True), (-0.9, True), (1.1, False), (-1.1, False)])
def test_the_default_is_within_one_standard_error_of_the_reference_or_not(shift: float, within: bool) -> None:
    rows = [
        {"part": part, "method": method, "seed": seed, "nll": 2.0 * seed + (shift if method == "probed" else 0.0)}
        for part in ("a, in", "b, out")
        for method in ("probed", "full Hessian", "GGN")
        for seed in (0, 1)
    ]
    found = list(table.verdict(with_means(rows, ("fits",))))
    assert [row["within"] for row in found] == [within, within, 2 * within]
    assert found[0]["difference"] == pytest.approx(shift) and found[0]["stderr"] == pytest.approx(1.0)
    assert found[0]["paired_stderr"] == pytest.approx(0.0) and found[-1]["columns"] == 2


def test_the_cheapest_probed_fits_of_small_enough_error_are_found() -> None:
    sizes = {
        "probed, 2 + 2": (0.4, 8),
        "probed, 8 + 2": (0.04, 24),
        "probed, 16 + 4": (0.001, 44),
        "per point": (0, 1004),
    }
    rows = [
        {"method": name, "seed": 0, "error": float(error), "fits": fits, "share": fits / 1004, "share_of_seconds": 0.1}
        for name, (error, fits) in sizes.items()
    ]
    (found,) = table.cost_verdict(with_means(rows, ("fits",)))
    assert (found["method"], found["fits"], found["holds"]) == ("probed, 8 + 2", 24, True)
    assert not next(table.cost_verdict(with_means([row | {"error": 0.06} for row in rows], ("fits",))))["holds"]
    assert not next(table.cost_verdict(with_means([row | {"share": 0.2} for row in rows], ("fits",))))["holds"]


@pytest.mark.parametrize(("nll", "auroc", "within"), [(0.01, -0.01, True), (0.03, 0.0, False), (0.0, -0.03, False)])
def test_digits_are_near_the_ggn_on_both_scores(nll: float, auroc: float, within: bool) -> None:
    rows = [
        {"method": "GGN", "seed": 0, "nll": 0.3, "ood_auroc": 0.8},
        {"method": "probed, 4 + 2", "seed": 0, "nll": 0.3 + nll, "ood_auroc": 0.8 + auroc},
    ]
    (found,) = digits.verdict(rows)
    assert found["within"] is within and found["nll"] == pytest.approx(nll)
