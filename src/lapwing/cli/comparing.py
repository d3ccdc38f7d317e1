"""Methods side by side: ``lapwing compare | report``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lapwing as lw
from lapwing.cli.say import make_folder, say
from lapwing.cli.setups import FROM_SETUP, Files, read


def compare(
    setup: str,
    /,
    *,
    data: Files = FROM_SETUP,
    out: Path = Path("runs/compare"),
    seeds: int = 1,
    draws: int = 0,
    reference: str | None = None,
    budget_seconds: float | None = None,
    max_bytes: int | None = None,
    report: bool = True,
) -> dict[str, Any]:
    """Compare every method on a trained network, and write a report; what was interrupted goes on.

    Every row is written to run.jsonl when it is finished. Called again with the same folder, network and data it does
    only what is missing. The exit code is 0 when all rows are there, those of methods that failed among them, 2 for
    an error, and 130 when it was interrupted.

    Args:
        setup: module:function of yours that returns (model, train, test) or a mapping of names; with validation every
            posterior is tuned by it too, with ood uncertainty is scored by how well it tells those data apart, with
            shifts, data by name, it is scored on these, with methods, by name, these are compared.
        data: Where the data are, if the function returns none.
        out: Folder for run.jsonl, results.json and report.html.
        seeds: How often everything is repeated.
        draws: Functions drawn for the joint log-likelihood; 0 leaves it out.
        reference: Method from which others differ; temperature scaling, or the plain network, if not given.
        budget_seconds: Seconds that each method may take.
        max_bytes: Memory that each method may take.
        report: Whether to write report.html.
    """
    import torch

    from lapwing.comparison.journal import told_on_page
    from lapwing.show.report import comparison_page, write_json, write_report

    task = read(setup, "train", "test", files=data)
    if (out / "run.jsonl").is_file():
        say(f"going on with {out / 'run.jsonl'}", sys.stderr)
    else:
        make_folder(out, "results.json", "report.html")
    parts = [task.pop(name) for name in ("model", "train", "test")]
    options: dict[str, Any] = {"seeds": seeds, "draws": draws, "reference": reference}
    options |= {"budget_seconds": budget_seconds, "max_bytes": max_bytes, "out": out / "run.jsonl"}
    result = lw.compare(*parts, **task, **options)
    device = next(parts[0].parameters(), torch.zeros(())).device
    page = comparison_page(result, out, about=told_on_page(device))
    write_json(page, out / "results.json")
    say(result.table())
    say(f"{out / 'run.jsonl'}, {out / 'results.json'}")
    if report:
        say(f"{write_report(out / 'results.json')}")
    if any(row.note == "interrupted" for row in result.rows):
        raise KeyboardInterrupt
    return result.to_dict() | {"results": str(out / "results.json")}


def report(results: Path, /, *, out: Path | None = None) -> dict[str, Any]:
    """Make one self-contained page of a results.json, or of the rows of a run.jsonl.

    Args:
        results: What lapwing compare or the demo wrote.
        out: Where the page goes; report.html beside the results if not given.
    """
    from lapwing.show.report import write_comparison, write_report

    if results.suffix == ".jsonl":
        found = lw.comparison.read_comparison(results)
        page = write_comparison(found, out or results.with_name("report.html"))
    else:
        page = write_report(results, out)
    say(str(page))
    return {"page": str(page)}
