"""One study: its rows, their means over the seeds, and beside what the source printed its numbers, as JSON."""

from __future__ import annotations

from benchmarks.command import Study, main
from studies.sampled import evidence, fidelity, hessian, m_steps, table, training, unet

STUDIES = {
    "m_steps": Study(m_steps.rows, m_steps.COLUMNS, ("steps",), verdict=m_steps.verdict),
    "evidence": Study(evidence.rows, evidence.COLUMNS, draw=evidence.draw, seeds=3),
    "fidelity": Study(fidelity.rows, fidelity.COLUMNS, seeds=3),
    "table": Study(table.rows, table.COLUMNS, verdict=table.verdict),
    "unet": Study(unet.rows, unet.COLUMNS, unet.COUNTS, verdict=unet.verdict, options=unet.OPTIONS),
    "hessian": Study(hessian.rows, hessian.COLUMNS, verdict=hessian.verdict, seeds=3),
    "training": Study(training.rows, training.COLUMNS, draw=training.draw, seeds=3),
}

if __name__ == "__main__":
    main(STUDIES)
