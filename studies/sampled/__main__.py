"""One study: its rows, their means over the seeds, and beside what the source printed its numbers, as JSON."""

from __future__ import annotations

from benchmarks.command import Study, main
from studies.sampled import evidence, fidelity, m_steps, table

STUDIES = {
    "m_steps": Study(m_steps.rows, m_steps.COLUMNS, ("steps",), verdict=m_steps.verdict),
    "evidence": Study(evidence.rows, evidence.COLUMNS, draw=evidence.draw, seeds=3),
    "fidelity": Study(fidelity.rows, fidelity.COLUMNS, seeds=3),
    "table": Study(table.rows, table.COLUMNS, verdict=table.verdict),
}

if __name__ == "__main__":
    main(STUDIES)
