"""One study: its rows, their means over images or seeds and what they show, as JSON and as a table."""

from __future__ import annotations

from benchmarks.command import Study, main
from studies.ct import design, table, volume

STUDIES: dict[str, Study] = {
    "table": table.STUDY,
    "design": design.STUDY,
    "volume": volume.STUDY,
}

if __name__ == "__main__":
    main(STUDIES)
