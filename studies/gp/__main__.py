"""One study: its rows, their means over the seeds and what they show, as JSON and as a table."""

from __future__ import annotations

from benchmarks.command import Study, main
from studies.gp import table

STUDIES: dict[str, Study] = {"uci": table.STUDY}

if __name__ == "__main__":
    main(STUDIES)
