"""One study: its rows, and their means over the seeds, as JSON and as a table.

A study that is run in parts, one network or method a call, is put together by ``--join``:

    python -m studies.sampled cifar --json ALL --join PART PART
"""

from __future__ import annotations

from studies.runs import command
from studies.sampled.setting import Setting

NAMES = ("toy", "invariance", "table", "fidelity", "cifar")

main = command("studies.sampled", __doc__, Setting(), NAMES)

if __name__ == "__main__":
    main()
