"""The tangent model and its draws: ways to a larger evidence, its curves, how near draws come, and priors by it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.report import Row
from benchmarks.table import summarised
from studies.pages.reports import NOTHING, difference, fixed, grid, mean_of, tables_of_studies
from studies.sampled import hessian, m_steps, table, unet


def tables() -> Iterator[str]:
    """In the order of the page."""
    yield from tables_of_studies("sampled", TABLES)


def of_m_steps(found: Sequence[Row]) -> Iterator[str]:
    """Steps to the largest evidence, and the estimators of the effective dimension."""
    means = list(summarised(found, ("steps",)))
    heads = {"from": "<", "way": "<", "steps": ">", "published": ">"}
    heads |= {"first step leads to": ">", "evidence lacks there, nats": ">"}
    lines = []
    for row in means:
        if "way" in row:
            published = m_steps.STEPS[row["way"]] if row["part"] == "from 500" else None
            start = row["part"].removeprefix("from ")
            numbers = [mean_of(row, "steps"), fixed(published, 0), mean_of(row, "first"), mean_of(row, "lacking")]
            lines.append([start, row["way"], *numbers])
    yield grid(heads, lines)
    heads = {"8 draws of the": "<", "γ": ">", "mean": ">", "variance": ">", "published": ">", "share below 0": ">"}
    lines = []
    for row in means:
        if "estimator" in row:
            name = row["estimator"]
            published = fixed(m_steps.VARIANCES[name], 2)
            numbers = [mean_of(row, column) for column in ("gamma", "mean", "variance")]
            lines.append([name, *numbers, published, mean_of(row, "negative")])
    yield grid(heads, lines)


def of_evidence(found: Sequence[Row]) -> Iterator[str]:
    """Where the evidence is largest by each covariance."""
    heads = {"network": "<", "weights": ">", "covariance": "<", "log₁₀ of the precision": ">"}
    heads |= {"over the exact one": ">", "at an end": ">"}
    lines = []
    for row in summarised(found):
        numbers = [mean_of(row, name) for name in ("log_precision", "ratio")]
        at_end = f"{row['at_end'] * row['seeds']:.0f} of {row['seeds']}"
        lines.append([row["part"], f"{row['weights']}", row["method"], *numbers, at_end])
    yield grid(heads, lines)


def of_fidelity(found: Sequence[Row]) -> Iterator[str]:
    """Distances to the exact posterior."""
    heads = {
        "network": "<",
        "weights": ">",
        "method": "<",
        "divergence of probabilities": ">",
        "distance of logits": ">",
    }
    lines = [
        [row["part"], f"{row['weights']}" if "weights" in row else NOTHING, row["method"]]
        + [mean_of(row, name) for name in ("divergence", "wasserstein")]
        for row in summarised(found)
    ]
    yield grid(heads, lines)


def of_table(found: Sequence[Row]) -> Iterator[str]:
    """Test NLL of each network by each choice of the prior, beside the source's."""
    heads = {"network": "<", "method": "<", "NLL": ">", "less that of temperature scaling": ">"}
    heads |= {"accuracy": ">", "ECE": ">", "log₁₀ of the precision": ">", "published NLL, MNIST": ">"}
    with_logs = [row | ({"log": math.log10(row["precision"])} if "precision" in row else {}) for row in found]
    lines = []
    for row in summarised(with_logs):
        numbers = [mean_of(row, name) for name in ("nll", "difference", "accuracy", "ece", "log")]
        lines.append([row["part"], row["method"], *numbers, fixed(table.published(row), 3)])
    yield grid(heads, lines)


def of_unet(found: Sequence[Row]) -> Iterator[str]:
    """NLL of the true image by each choice of the prior of a deep image prior, beside the source's."""
    heads = {
        "rate": ">",
        "images": ">",
        "method": "<",
        "NLL": ">",
        "NLL of all pixels together": ">",
        "standard deviation": ">",
    }
    heads |= {"log₁₀ of the precision": ">", "noise precision over the true one": ">", "published NLL, KMNIST": ">"}
    with_logs = [row | ({"log": math.log10(row["precision"])} if "precision" in row else {}) for row in found]
    lines = []
    for row in summarised(with_logs, unet.COUNTS):
        numbers = [mean_of(row, name) for name in ("nll", "joint", "mean_std", "log", "noise_ratio")]
        lines.append([row["rate"], f"{row['seeds']}", row["method"], *numbers, fixed(unet.published(row), 3)])
    yield grid(heads, lines)


def of_hessian(found: Sequence[Row]) -> Iterator[str]:
    """Precision and test NLL by where the evidence and the Hessian are, and what each change makes of both."""
    heads = {"network": "<", "evidence at the": "<", "Hessian at the": "<", "biases": "<"}
    heads |= {"precision": ">", "NLL": ">", "NLL by the precision alone": ">"}
    lines = []
    for row in summarised(found):
        words = [row[name] for name in ("part", "evidence", "hessian", "biases")]
        lines.append(words + [mean_of(row, name) for name in ("precision", "nll", "nll_by_precision")])
    yield grid(heads, lines)
    heads = {"network": "<", "change": "<", "log of the precision": ">", "change of the NLL": ">"}
    heads |= {"by the precision alone": ">"}
    lines = []
    for row in hessian.changes(found):
        before, after = hessian.FACTORS[row["change"]]
        called = {"evidence": "evidence", "hessian": "Hessian", "biases": "biases"}[row["change"]]
        numbers = [difference(row[name], row[f"{name}_stderr"], 3) for name in ("log_ratio", "nll", "nll_by_precision")]
        lines.append([row["part"], f"{called}, from {before} to {after}", *numbers])
    yield grid(heads, lines)


def of_training(found: Sequence[Row]) -> Iterator[str]:
    """Distance of the posteriors of both precisions by the epochs of training."""
    heads = {"network": "<", "epochs": ">", "distance of logits": ">", "precision at the weights": ">"}
    heads |= {"at the mode": ">", "square norm of the weights": ">", "NLL alone": ">"}
    heads |= {"NLL, evidence at the weights": ">", "NLL, at the mode": ">"}
    names = ("wasserstein", "at_weights", "at_mode", "square_norm", "nll", "nll_weights", "nll_mode")
    lines = [[row["part"], f"{row['epochs']}", *(mean_of(row, name) for name in names)] for row in summarised(found)]
    yield grid(heads, lines)


TABLES: Mapping[str, Callable[[Sequence[Row]], Iterator[str]]] = {
    "m_steps": of_m_steps,
    "evidence": of_evidence,
    "fidelity": of_fidelity,
    "table": of_table,
    "unet": of_unet,
    "hessian": of_hessian,
    "training": of_training,
}
