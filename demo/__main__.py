"""Train, fit, tune and compare on handwritten digits and on a curve with a gap; write a report."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demo and print its tables; an error of lapwing is one line on stderr and exit code 2.

    Args:
        arguments: What was typed; ``None`` takes ``sys.argv``.
    """
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/demo"), help="folder for results.json, report.html and figures"
    )
    parser.add_argument("--seeds", type=int, default=5, help="how many times, each with other unseen digits")
    parser.add_argument("--quick", action="store_true", help="train for a moment only, to see that everything runs")
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads must not slow a busy machine; read by torch
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("lapwing").setLevel(logging.INFO)
    from demo.tour import run
    from lapwing.ground.errors import LapwingError

    try:
        done = run(options.out, seeds=options.seeds, quick=options.quick, progress=sys.stderr.isatty())
    except LapwingError as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        sys.exit(130)
    for part in (done.digits.table(), done.gap.table(), "\n".join(map(str, done.findings))):
        print(part + "\n")
    print(f"{done.results}, {done.report}: {done.seconds:.0f} seconds")


if __name__ == "__main__":
    main()
