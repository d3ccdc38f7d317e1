"""One study: its rows, beside what the source printed its numbers, as JSON and as a table; its figure where asked."""

from __future__ import annotations

from benchmarks.command import Study, main
from studies.ella import ablation, growth, shifted

CIFAR = "CIFAR-10 and the trained networks"
STUDIES = {
    "ablation": Study(ablation.rows, ablation.COLUMNS, draw=ablation.draw, seeds=1, needs="MNIST"),
    "stopping": Study(growth.stopping, draw=growth.draw_stopping, needs=CIFAR),
    "rank": Study(growth.rank, needs=CIFAR),
    "shifted": Study(
        shifted.rows,
        verdict=shifted.verdict,
        draw=shifted.draw,
        needs=CIFAR,
        options={"seconds": (shifted.SECONDS, "what a method may take")},
    ),
}

if __name__ == "__main__":
    main(STUDIES)
