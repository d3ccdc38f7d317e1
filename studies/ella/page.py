"""The page ``docs/ella.md``: what each study does, the command that runs it, and the tables of its report.

python -m studies.ella.page --reports benchmarks/results --markdown docs/ella.md

A study whose report is not there has its command and what it does; a figure is made by ``--join REPORT --figure FILE``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from benchmarks.report import Row
from benchmarks.table import markdown


@dataclass(frozen=True)
class Section:
    """What the page says of a study.

    Args:
        title: Its heading.
        options: Of the command line, beside the name of the study and ``--json``.
        names: Columns that name a case.
        columns: Columns with numbers, and their headings.
        text: What was done, and what is to be seen.
    """

    title: str
    options: str
    names: tuple[str, ...]
    columns: dict[str, str]
    text: str


SCORES = {"nll": "NLL", "ece": "ECE", "accuracy": "accuracy"}
COST = {"fit_seconds": "fit s", "predict_seconds": "predict s", "fit_mib": "fit MiB"}
SECTIONS = {
    "toy": Section(
        "The toy",
        "[--figure FILE]",
        ("method",),
        {
            "precision": "precision",
            "kl": "KL",
            "kl_outputs": "KL, without noise",
            "below diagonal": "below diagonal",
            "below last layer": "below last layer",
            "kl_between": "between the points",
            "kl_beyond": "beyond them",
            "variance_over_prior": "variance / prior's at x = 1",
            "far_over_prior": "at x = 1000",
        },
        "KL divergence in nats of what each method predicts from what exact linearised Laplace predicts, over draws of "
        "16 points and trained perceptrons; M = 16 landmarks, which are all there are, K = 5. The weaker the prior, "
        "the more directions matter beside the five. Below: the part of the draws in which ELLA is closer to exact. "
        "Far from the data: the variance over the prior's, of the perceptron and of a layer of fixed sines.",
    ),
    "ablation": Section(
        "Landmarks and rank",
        "--data DIR [--figure FILE]",
        ("landmarks", "rank"),
        {
            "eps_nystrom": "ε Nyström",
            "eps_ella": "ε ELLA",
            "eps_residual": "ε ELLA with the residual",
            "trace_error": "1 − tr φφᵀ / tr K",
        },
        "A CNN with batch norm of 29 034 weights and the 2000 MNIST images it was trained on, 256 others for the "
        "posterior; relative errors in the Frobenius norm, ± the standard error of their probes where there is one "
        "seed alone. Without the residual an error of 1 says that hardly any variance is there; with it the prior "
        "stands where the exact posterior has shrunk, until the span holds what the data determined.",
    ),
    "stopping": Section(
        "Early stopping",
        "--data DIR [--networks cnn ella_resnet20] [--figure FILE]",
        (),
        {
            "nll_plain": "plain network",
            "nll_stopped": "stopped early",
            "nll_all": "all images",
            "nll_best": "best N for the test images",
            "stopped_at": "stopped at N",
            "best_at": "best N",
        },
        "Test NLL, stopped early by validation images and with all training images in the posterior; K = 20, M = 500, "
        "the paper's prior, without the residual.",
    ),
    "rank": Section(
        "Rank",
        "--data DIR [--networks cnn ella_resnet20] [--figure FILE]",
        ("rank",),
        SCORES | {"nll_over_plain": "NLL / plain", "stopped_at": "stopped at N", "kernel_error": "1 − tr φφᵀ / tr K"},
        "Test scores against K at M = 500 landmarks, stopped early by validation images, the paper's prior.",
    ),
    "cifar": Section(
        "CIFAR-10",
        "--data DIR",
        ("method", "prior"),
        SCORES | {"precision": "prior precision", "stopped_at": "images"} | COST,
        "The first 300 test images stop early, tune by validation and fit the temperature; scored on the other 717. "
        "The prior is the paper's, 1 / (50 000 · 1e-4), or tuned. ECE with 15 bins.",
    ),
    "corruption": Section(
        "Corrupted images",
        "--data DIR [--figure FILE]",
        ("method",),
        {f"{score}_{k}": f"{score.upper()} {k}" for score in ("nll", "ece") for k in (0, 1, 3, 5)},
        "By severity, 0 as they were; means over 14 kinds of corruption.",
    ),
    "rejection": Section(
        "Error against confidence",
        "--data DIR [--figure FILE]",
        ("method",),
        {
            "auroc": "AUROC",
            "error_0": "error, all",
            "error_0.5": "confidence ≥ 0.5",
            "error_0.7": "≥ 0.7",
            "error_0.9": "≥ 0.9",
            "confidence_inside": "mean confidence, CIFAR-10",
            "confidence_outside": "MNIST",
        },
        "717 test images and as many digits of MNIST, whose answers are all wrong.",
    ),
    "seconds": Section(
        "Seconds to predict",
        "--data DIR",
        ("method",),
        {
            "milliseconds_per_image": "ms an image",
            "ratio": "over K passes in one batched call",
            "ratio_one_by_one": "over K passes one by one",
        },
        "Beside K = 20 forward-mode passes on the same images, in turn with them in the same run; medians.",
    ),
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
    command = f"`python -m studies.ella {name} --json FILE {section.options}`"
    lines = [f"## {section.title}\n", f"{command}\n", f"{fill(section.text, 120)}\n"]
    columns = section.columns | {"seeds": "seeds"}
    for part in dict.fromkeys(row.get("part", "") for row in means):
        own = [row for row in means if row.get("part", "") == part]
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
