"""One study: its rows, their means over the seeds and what they show, as JSON and as a table."""

from __future__ import annotations

from benchmarks.command import Study, main
from studies.gp import descents, hyper, line, molecules, noise, search, table

STUDIES: dict[str, Study] = {
    "uci": table.STUDY,
    "hyper": hyper.STUDY,
    "noise": noise.STUDY,
    "descents": descents.STUDY,
    "regimes": line.REGIMES,
    "starvation": line.STARVATION,
    "search": search.STUDY,
    "molecules": molecules.STUDY,
}

if __name__ == "__main__":
    main(STUDIES)
