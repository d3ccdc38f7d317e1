"""One study: its rows, their means over the seeds and what they show, as JSON, as a table, and as a figure."""

from __future__ import annotations

from studies.runs import command
from studies.sampled.setting import Setting

NAMES = ("table", "intervals", "sparsification", "cost", "digits")

main = command("studies.hessian_free", __doc__, Setting(seeds=20), NAMES, pause=20.0)

if __name__ == "__main__":
    main()
