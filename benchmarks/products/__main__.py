"""Every problem with one column and with 32, both sides in one process each, taking turns."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tqdm.auto import tqdm

from benchmarks.measure import Row, Step, run_isolated, table, write_json
from benchmarks.products.problems import EXAMPLES, PROBLEMS

PEER = "curvlinops 3.0.1"
COLUMNS = (1, 32)
FORMS = ("layers", "split", "plain")

LIMITS: dict[tuple[str, str], float] = {
    ("mlp/1", "seconds"): 0.65,
    ("lenet/1", "seconds"): 0.65,
    ("resnet20/1", "seconds"): 0.65,
    ("lenet/32", "seconds"): 0.45,
    ("resnet20/32", "seconds"): 0.35,
}
"""Largest ratio of our time to the peer's."""

BEST, BYTES = 1.15, 2048.0
"""Largest ratio of the chosen form's time to the best form's; most MiB of a product."""


@dataclass(frozen=True)
class Timed:
    """Seconds of one product of one contestant.

    Args:
        seconds: For all examples.
        label: Which batches, which form.
        peak_mib: Peak memory, MiB.
    """

    seconds: float
    label: str
    peak_mib: float


def main() -> None:
    """Parse the command line, measure, write the report after every cell, print the table."""
    args = _arguments()
    os.environ |= {"OMP_NUM_THREADS": str(args.threads), "OMP_WAIT_POLICY": "PASSIVE"}
    from benchmarks.products.contest import work

    names = [name for name in PROBLEMS if args.only in (None, name)]
    rows: list[Row] = []
    widths = [columns for columns in COLUMNS if args.columns in (None, columns)]
    for name, columns in tqdm([(name, columns) for name in names for columns in widths], unit="cell"):
        steps = run_isolated(
            work,
            timeout=args.timeout,
            limit_gib=args.limit_gib,
            problem=name,
            columns=columns,
            data=None if args.data is None else str(args.data),
            threads=args.threads,
            device=args.device,
        )
        rows += report(f"{name}/{columns}", columns, steps)
        write_json(args.json, rows)
    sys.stdout.write(table(rows, verdict))


def report(work: str, columns: int, steps: Iterable[Step]) -> list[Row]:
    """The rows of one problem and number of columns.

    Args:
        work: Name of the two.
        columns: Columns of the block.
        steps: What ``contest.work`` measured.

    Returns:
        Seconds of a product, peak memory, plain gradients a column; then every form, the choice, and the preparation.
    """
    steps = tuple(steps)
    failed = "; ".join(f"{step.name}: {step.note}" for step in steps if step.note)
    found = timed(steps)
    ours, peer, gradient = (found.get(name) for name in ("ours", "peer", "gradient"))
    prepared, memory, theirs = (first(steps, name) for name in ("prepare", "memory", "peer memory"))
    if ours is None or peer is None or gradient is None or prepared is None or memory is None or theirs is None:
        return [Row(work, "seconds", None, None, PEER, failed or "the process ended early")]
    name = f"{PEER}, {peer.label}"
    unit = columns * gradient.seconds
    peak = max(prepared.peak_mib or 0.0, memory.peak_mib or 0.0)
    gap = first(steps, "difference")
    same = f"relative difference {gap.label} on 50 examples" if gap is not None else ""
    rows = [
        Row(work, "seconds", ours.seconds, peer.seconds, name, "; ".join(part for part in (ours.label, same) if part)),
        Row(work, "peak_mib", peak, theirs.peak_mib, name, f"{memory.label}; the peer's on 2 batches"),
        Row(work, "gradients_a_column", ours.seconds / unit, peer.seconds / unit, name, "plain forward and backward"),
        Row(work, "seconds_to_prepare", prepared.seconds, None, name, "what was loaded first for it included"),
        Row(work, "seconds_of_a_gradient", gradient.seconds, None, name),
    ]
    forms = {ours.label: ours.seconds}
    for form in FORMS:
        other = found.get(form)
        if other is not None:
            scale = EXAMPLES / int(other.label.split()[0])
            forms[form] = other.seconds * scale
            note = "" if scale == 1 else f"timed on {other.label} and scaled"
            rows.append(Row(work, f"seconds_{form}", forms[form], peer.seconds, name, note))
    best = min(forms, key=forms.__getitem__)
    rows.append(Row(work, "chosen_over_best", ours.seconds, forms[best], f"best form: {best}", f"chosen: {ours.label}"))
    return [*rows, Row(work, "failed", None, None, name, failed)] if failed else rows


def timed(steps: Iterable[Step]) -> dict[str, Timed]:
    """The contestants' times: of those repeated inside a measurement, the longest measurement counts."""
    found: dict[str, tuple[int, Timed]] = {}
    for step in steps:
        label, bar, repeats = step.label.rpartition("|")
        if not bar or step.seconds is None:
            continue
        times = int(repeats)
        if times >= found.get(step.name, (0, None))[0]:
            found[step.name] = (times, Timed(step.seconds / times, label, step.peak_mib or 0.0))
    return {name: each for name, (_, each) in found.items()}


def first(steps: Iterable[Step], name: str) -> Step | None:
    """The first step of that name."""
    return next((step for step in steps if step.name == name), None)


def verdict(row: Row) -> str:
    """The limit on a row, with a mark where it is missed."""
    if row.quantity == "peak_mib":
        value, limit = row.ours, BYTES
    else:
        value, limit = row.ratio, BEST if row.quantity == "chosen_over_best" else LIMITS.get((row.work, row.quantity))
    if limit is None:
        return ""
    return f"{limit:g}" if value is not None and value <= limit else f"!{limit:g}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.products", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="report to write")
    parser.add_argument("--data", type=Path, help="data folder; without it data are generated")
    parser.add_argument("--only", choices=tuple(PROBLEMS), help="one network instead of all three")
    parser.add_argument("--columns", type=int, choices=COLUMNS, help="one block width instead of both")
    parser.add_argument("--threads", type=int, default=2, help="threads of both sides")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds allowed to one measurement")
    parser.add_argument("--limit-gib", type=float, default=14.0, help="memory allowed to a process")
    return parser.parse_args()


if __name__ == "__main__":
    main()
