"""The page ``docs/ella.md``: what each study does, the command that runs it, and the tables of its report.

python -m studies.ella.page --reports benchmarks/results --markdown docs/ella.md

What a study did and what is to be seen is said where its rows are made, below the first line of the docstring. A
study whose report is not there has its command and what it does; a figure is made by ``--join REPORT --figure FILE``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from inspect import getdoc
from pathlib import Path
from textwrap import fill

from benchmarks.report import Row, grouped
from benchmarks.table import markdown
from studies.ella.__main__ import STUDIES
from studies.ella.ablation import LABELS


@dataclass(frozen=True)
class Section:
    """What the page says of a study.

    Args:
        title: Its heading.
        options: Of the command line, beside the name of the study and ``--json``.
        names: Columns that name a case.
        columns: Columns with numbers, and their headings.
    """

    title: str
    options: str
    names: tuple[str, ...]
    columns: dict[str, str]


DATA, NETWORKS, FIGURE = "--data DIR", "[--networks cnn ella_resnet20]", "[--figure FILE]"
SCORES = {"nll": "NLL", "ece": "ECE", "accuracy": "accuracy"}
COST = {"fit_seconds": "fit s", "predict_seconds": "predict s", "fit_mib": "fit MiB"}
TRACE = "1 − tr φφᵀ / tr K"
TOY = {
    "precision": "precision", "kl": "KL", "kl_outputs": "KL, without noise", "below diagonal": "below diagonal",
    "below last layer": "below last layer", "kl_between": "between the points", "kl_beyond": "beyond them",
    "variance_over_prior": "variance / prior's at x = 1", "far_over_prior": "at x = 1000",
}  # fmt: skip
STOPPING = {
    "nll_plain": "plain network", "nll_stopped": "stopped early", "nll_all": "all images",
    "nll_best": "best N for the test images", "stopped_at": "stopped at N", "best_at": "best N",
}  # fmt: skip
RANK = SCORES | {"nll_over_plain": "NLL / plain", "stopped_at": "stopped at N", "kernel_error": TRACE}
CIFAR = SCORES | {"precision": "prior precision", "stopped_at": "images"} | COST
CORRUPTION = {f"{score}_{k}": f"{score.upper()} {k}" for score in ("nll", "ece") for k in (0, 1, 3, 5)}
REJECTION = {
    "auroc": "AUROC", "error_0": "error, all", "error_0.5": "confidence ≥ 0.5", "error_0.7": "≥ 0.7",
    "error_0.9": "≥ 0.9", "confidence_inside": "mean confidence, CIFAR-10", "confidence_outside": "MNIST",
}  # fmt: skip
SECONDS = {
    "milliseconds_per_image": "ms an image", "ratio": "over K passes in one batched call",
    "ratio_one_by_one": "over K passes one by one",
}  # fmt: skip
SECTIONS = {
    "toy": Section("The toy", FIGURE, ("method",), TOY),
    "ablation": Section(
        "Landmarks and rank", f"{DATA} {FIGURE}", ("landmarks", "rank"), LABELS | {"trace_error": TRACE}
    ),
    "stopping": Section("Early stopping", f"{DATA} {NETWORKS} {FIGURE}", (), STOPPING),
    "rank": Section("Rank", f"{DATA} {NETWORKS} {FIGURE}", ("rank",), RANK),
    "cifar": Section("CIFAR-10", DATA, ("method", "prior"), CIFAR),
    "corruption": Section("Corrupted images", f"{DATA} {FIGURE}", ("method",), CORRUPTION),
    "rejection": Section("Error against confidence", f"{DATA} {FIGURE}", ("method",), REJECTION),
    "seconds": Section("Seconds to predict", DATA, ("method",), SECONDS),
}


def page(reports: Path, figures: Path) -> str:
    """The page, from the reports and figures that are there."""
    words = (
        "Made by `python -m studies.ella.page`; do not edit by hand. Numbers are means over seeds of the landmarks or "
        "the draws of the data, ± their standard error. What each study does is said in its module in `studies/ella/`."
    )
    parts = [f"# ELLA\n\n{fill(words, 120)}\n"]
    for name, section in SECTIONS.items():
        path = reports / f"ella-{name}.json"
        report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
        parts.append(text(name, section, report["rows"]))
        if (figure := figures / f"ella-{name}.png").exists():
            parts.append(f"![{section.title}]({figures.name}/{figure.name})\n")
    return "\n".join(parts)


def text(name: str, section: Section, rows: list[Row]) -> str:
    """A section: the command, what it did, and a table a part."""
    means = [row for row in rows if row.get("summary")]
    done = (getdoc(STUDIES[name].rows) or "").partition("\n\n")[2]
    command = f"`python -m studies.ella {name} --json FILE {section.options}`"
    lines = [f"## {section.title}\n", f"{command}\n", f"{fill(done, 120)}\n"]
    columns = section.columns | {"seeds": "seeds"}
    for part, own in grouped(means, "part").items():
        lines += [f"### {part}\n", markdown(own, section.names, columns), ""]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m studies.ella.page", description=__doc__)
    parser.add_argument("--reports", type=Path, default=Path("benchmarks/results"), help="folder of the reports")
    parser.add_argument("--markdown", type=Path, default=Path("docs/ella.md"), help="page to write")
    args = parser.parse_args(arguments)
    args.markdown.write_text(page(args.reports, args.markdown.parent / "figures"), encoding="utf-8")


if __name__ == "__main__":
    main()
