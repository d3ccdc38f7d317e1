"""Products with the Gauss-Newton matrix, lapwing against curvlinops: one column and 32.

    python -m benchmarks.products --json FILE [--only mlp|lenet|resnet20 1|32] [--data DIR]

Both sides of every problem run in one process, taking turns.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from benchmarks.command import Setting, Study, main
from benchmarks.measure import Step, run_isolated
from benchmarks.product_sizes import EXAMPLES, STRATEGIES
from benchmarks.report import Row, beside

PEER = "curvlinops 3.0.1"
COLUMNS = ("1", "32")

LIMITS: dict[tuple[str, str], float] = {
    ("mlp/1", "seconds"): 0.65,
    ("lenet/1", "seconds"): 0.65,
    ("resnet20/1", "seconds"): 0.65,
    ("lenet/32", "seconds"): 0.45,
    ("resnet20/32", "seconds"): 0.35,
}
"""Largest ratio of our time to the peer's."""

BEST, BYTES = 1.15, 2048.0
"""Largest ratio of the chosen strategy's time to the best one's; most MiB of a product."""


def rows(setting: Setting) -> Iterator[Row]:
    """Every problem and number of columns."""
    os.environ["OMP_NUM_THREADS"] = str(setting.more["threads"])
    from benchmarks.contest import PEER_BATCHES, work

    quick = setting.quick
    for name in setting.among(PEER_BATCHES, ("mlp",) if quick else ()):
        for columns in map(int, setting.among(COLUMNS, ("1",) if quick else ())):
            options = {"problem": name, "columns": columns, "device": setting.device, "quick": quick, **setting.more}
            steps = run_isolated(work, data=None if setting.data is None else str(setting.data), **options)
            yield from report(f"{name}/{columns}", columns, steps)


def report(work: str, columns: int, steps: Sequence[Step]) -> list[Row]:
    """The rows of one problem and number of columns.

    Args:
        work: Name of the two.
        columns: Columns of the block.
        steps: What ``contest.work`` measured.

    Returns:
        Seconds of a product, peak memory, plain gradients a column; then the strategies, the choice, the preparation.
    """
    failed = "; ".join(f"{step.name}: {step.note}" for step in steps if step.note)
    found = {step.name: step for step in reversed(steps)}  # the first of each name
    prepared, memory, theirs = (found.get(name) for name in ("prepare", "memory", "peer memory"))
    ours, peer, gradient = sides = [found.get(name) for name in ("ours", "peer", "gradient")]
    if None in (prepared, memory, theirs, *sides) or None in [side.seconds for side in sides]:
        return [beside(work, "seconds", None, None, PEER, failed or "the process ended early")]
    name = f"{PEER}, {peer.label}"
    unit = columns * gradient.seconds
    peak = max(prepared.peak_mib or 0.0, memory.peak_mib or 0.0)
    gap = found.get("difference")
    same = f"relative difference {gap.label} on 50 examples" if gap is not None else ""
    chosen = "; ".join(part for part in (ours.label, same) if part)
    rows = [
        beside(work, "seconds", ours.seconds, peer.seconds, name, chosen),
        beside(work, "peak_mib", peak, theirs.peak_mib, name, f"{memory.label}; the peer's on 2 batches"),
        beside(work, "gradients_a_column", ours.seconds / unit, peer.seconds / unit, name, "forward and backward"),
        beside(work, "seconds_to_prepare", prepared.seconds, None, name, "what was loaded first for it included"),
        beside(work, "seconds_of_a_gradient", gradient.seconds, None, name),
    ]
    strategies = {ours.label: ours.seconds}
    for strategy in STRATEGIES:
        other = found.get(strategy)
        if other is not None and other.seconds is not None:
            scale = EXAMPLES / int(other.label.split()[0])
            strategies[strategy] = other.seconds * scale
            note = "" if scale == 1 else f"timed on {other.label} and scaled"
            rows.append(beside(work, f"seconds_{strategy}", strategies[strategy], peer.seconds, name, note))
    best = min(strategies, key=strategies.__getitem__)
    rows.append(
        beside(work, "chosen_over_best", ours.seconds, strategies[best], f"best: {best}", f"chosen: {ours.label}")
    )
    rows = [row | limited(row) for row in rows]
    return [*rows, beside(work, "failed", None, None, name, failed)] if failed else rows


def limited(row: Row) -> Row:
    """The limit on a row where there is one, and whether it holds."""
    if row["quantity"] == "peak_mib":
        value, limit = row["ours"], BYTES
    else:
        known = BEST if row["quantity"] == "chosen_over_best" else LIMITS.get((row["work"], row["quantity"]))
        value, limit = row["ratio"], known
    return {} if limit is None else {"limit": limit, "holds": value is not None and value <= limit}


STUDY = Study(rows, devices=True, options={"threads": (2, "threads of both sides")})

if __name__ == "__main__":
    main({"products": STUDY})
