"""Make the tables of the documentation again from the committed reports.

python -m studies.pages [--check] [PAGE ...]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence

from benchmarks.report import ROOT
from benchmarks.table import with_tables
from studies.pages import (
    calibration,
    choosing,
    comparing,
    continual,
    ella,
    full_covariance,
    hessian_free,
    knowledge,
    migration,
    processes,
    published,
    readme,
    sampled,
    tomography,
    views,
)

PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "README.md": readme.tables,
    "docs/calibration.md": calibration.tables,
    "docs/choosing.md": choosing.tables,
    "docs/comparing.md": comparing.tables,
    "docs/continual.md": continual.tables,
    "docs/ct-results.md": tomography.tables,
    "docs/ella.md": ella.tables,
    "docs/full-laplace.md": full_covariance.tables,
    "docs/gp-results.md": processes.tables,
    "docs/hessian-free.md": hessian_free.tables,
    "docs/how-to/views.md": views.tables,
    "docs/knowledge.md": knowledge.tables,
    "docs/migration.md": migration.tables,
    "docs/results.md": published.tables,
    "docs/sampled.md": sampled.tables,
}
"""The pages, and what makes their tables, in the order of the page."""


def fresh(name: str) -> str:
    """The text of a page with its tables made again."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return with_tables(text, PAGES[name]())


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or say which are not what their reports say.

    Returns:
        0, or 1 where ``--check`` finds a page that would change.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"among {', '.join(PAGES)}; all by default")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail where a page would change")
    args = parser.parse_args(arguments)
    unknown = [name for name in args.pages if name not in PAGES]
    if unknown:
        parser.error(f"no page {', '.join(unknown)}; there are {', '.join(PAGES)}")
    stale = 0
    for name in args.pages or PAGES:
        path = ROOT / name
        text = fresh(name)
        if text == path.read_text(encoding="utf-8"):
            continue
        stale += 1
        sys.stdout.write(f"{name} {'would change' if args.check else 'written'}\n")
        if not args.check:
            path.write_text(text, encoding="utf-8")
    return int(args.check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
