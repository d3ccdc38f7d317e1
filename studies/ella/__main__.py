"""One study: its rows and their means over the seeds as JSON and as a table, its figure where asked.

A study that is run in parts, one network or method a call, is put together by ``--join``:

    python -m studies.ella cifar --json ALL --join PART PART
"""

from __future__ import annotations

from studies.ella.setting import Setting
from studies.runs import command

NAMES = ("toy", "ablation", "stopping", "rank", "cifar", "corruption", "rejection", "seconds")

main = command("studies.ella", __doc__, Setting(), NAMES)

if __name__ == "__main__":
    main()
