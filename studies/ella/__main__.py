"""One study: its rows and their means over the seeds as JSON and as a table, its figure where asked.

A study that is run in parts, one network or method a call, is put together by ``--join``:

    python -m studies.ella cifar --json ALL --join PART PART
"""

from __future__ import annotations

from benchmarks.command import Study, main
from studies.ella import ablation, cifar, growth, seconds, shifted, toy

STUDIES = {
    "toy": Study(toy.rows, toy.COLUMNS, draw=toy.draw),
    "ablation": Study(ablation.rows, ablation.COLUMNS, draw=ablation.draw),
    "stopping": Study(growth.stopping, growth.STOPPING, draw=growth.draw_stopping),
    "rank": Study(growth.rank, growth.RANK, draw=growth.draw_rank),
    "cifar": Study(cifar.rows, cifar.COLUMNS),
    "corruption": Study(shifted.corruption, shifted.CORRUPTION, draw=shifted.draw_corruption),
    "rejection": Study(shifted.rejection, shifted.REJECTION, draw=shifted.draw_rejection),
    "seconds": Study(seconds.rows, seconds.COLUMNS),
}

if __name__ == "__main__":
    main(STUDIES)
