"""One study: its rows, their means over the seeds and what they show, as JSON, as a table, and as a figure."""

from __future__ import annotations

from benchmarks.command import Study, main
from studies.hessian_free import digits, table, weights

SCORES = (*digits.SCORES, "fits", "cpu_seconds")
STUDIES = {
    "table": Study(table.rows, table.COLUMNS, ("fits",), verdict=table.verdict, seeds=20),
    "intervals": Study(weights.intervals, weights.INTERVALS, draw=weights.draw_intervals, seeds=20),
    "sparsification": Study(weights.sparsification, weights.PRUNED, draw=weights.draw_sparsification, seeds=20),
    "cost": Study(table.cost, table.COST, ("fits",), verdict=table.cost_verdict, draw=table.draw_cost, seeds=20),
    "digits": Study(digits.rows, SCORES, ("fits", "products"), verdict=digits.verdict, seeds=20),
}

if __name__ == "__main__":
    main(STUDIES)
