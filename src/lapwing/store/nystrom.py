"""What a posterior on the span of a few gradients holds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from lapwing.posteriors import NystromPosterior, NystromReport
from lapwing.results import Estimate
from lapwing.store.archive import Json, Tensors


def nystrom_state(posterior: NystromPosterior, tensors: Tensors) -> Json:
    """The span, what the data said about it, and the report."""
    report = posterior.report
    return {
        "changes": tensors.put("changes", posterior.changes),
        "compressed": tensors.put("compressed", posterior.compressed),
        "residual": posterior.residual,
        "report": {
            "eigenvalues": tensors.put("report.eigenvalues", report.eigenvalues),
            "kept": report.kept,
            "pairs": tensors.put("report.pairs", report.pairs),
            "error": asdict(report.error),
            "trace": report.trace,
            "partial": report.partial,
        },
    }


def nystrom_from(state: Json, tensors: Tensors, device: torch.device) -> dict[str, Any]:
    """The fields that gave a state."""
    report = state["report"]
    return {
        "changes": tensors.get(state["changes"], device),
        "compressed": tensors.get(state["compressed"], device),
        "residual": state["residual"],
        "report": NystromReport(
            tensors.get(report["eigenvalues"], device),
            report["kept"],
            tensors.get(report["pairs"]),
            Estimate(**report["error"]),
            tuple((examples, nll) for examples, nll in report["trace"]),
            report["partial"],
        ),
    }
