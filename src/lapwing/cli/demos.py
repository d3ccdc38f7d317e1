"""``lapwing demo``: the whole way on data that come with scikit-learn."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from lapwing.cli.say import say


def demo(*, out: Path = Path("runs/demo"), seeds: int = 5, quick: bool = False) -> dict[str, Any]:
    """Train, fit, tune and compare on handwritten digits and on a curve with a gap; write a report.

    Args:
        out: Folder for results.json, report.html and figures.
        seeds: How many times, each with other unseen digits.
        quick: Train for a moment only, to see that everything runs.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads must not slow a busy machine; read by torch
    from lapwing.demo import tour

    done = tour.run(out, seeds=seeds, quick=quick, progress=sys.stderr.isatty())
    for part in (done.digits.table(), done.gap.table(), "\n".join(map(str, done.findings))):
        say(part + "\n")
    say(f"{done.results}, {done.report}: {done.seconds:.0f} seconds")
    findings = [finding.to_dict() for finding in done.findings]
    return {"results": str(done.results), "report": str(done.report), "findings": findings}
