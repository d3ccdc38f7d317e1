"""One study: its rows, and their means over the seeds, as JSON and as a table.

A study that is run in parts, one network or method a call, is put together by ``--join``:

    python -m studies.sampled cifar --json ALL --join PART PART
"""

from __future__ import annotations

from benchmarks.command import Study, main
from studies.sampled import cifar, fidelity, invariance, table, toy

STUDIES = {
    "toy": Study(toy.rows, toy.COLUMNS, ("steps", "steps_to_optimum")),
    "invariance": Study(invariance.rows, invariance.COLUMNS),
    "table": Study(table.rows, table.COLUMNS, ("steps",)),
    "fidelity": Study(fidelity.rows, fidelity.COLUMNS),
    "cifar": Study(cifar.rows, cifar.COLUMNS, ("steps",), needs="CIFAR-10 and the trained networks"),
}

if __name__ == "__main__":
    main(STUDIES)
