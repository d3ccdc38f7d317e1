"""``lapwing demo``: the whole way on data that come with scikit-learn."""

from __future__ import annotations

import logging
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
    from lapwing.demo import questions, text, tour

    logging.getLogger("lapwing").setLevel(logging.WARNING)  # of what every fit chose there would be a hundred lines
    done = tour.run(out, seeds=seeds, quick=quick, progress=sys.stderr.isatty())
    for part in (*text.in_terminal(done.digits, done.gap), questions.table(done.answers, seeds)):
        say(part + "\n")
    say(f"{done.results}, {done.report}: {done.seconds:.0f} seconds")
    told = [answer.to_dict() | {"verdict": answer.verdict} for answer in done.answers]
    return {"results": str(done.results), "report": str(done.report), "answers": told}
