"""What a posterior on the span of a few gradients holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.ground.archive import Json, Tensors
from lapwing.posteriors import NystromPosterior, NystromReport
from lapwing.store.families import records


@final
@dataclass(frozen=True, eq=False)
class Span:
    """The fields of a ``NystromPosterior`` that others do not have."""

    changes: Float[Tensor, "d k"]
    compressed: Float[Tensor, "k k"]
    residual: bool
    report: NystromReport


def nystrom_state(posterior: NystromPosterior, tensors: Tensors) -> Json:
    """The span, what the data said about it, and the report."""
    span = Span(posterior.changes, posterior.compressed, posterior.residual, posterior.report)
    return records(tensors).state(span)


def nystrom_from(state: Any, tensors: Tensors, device: torch.device) -> dict[str, Any]:
    """The fields that gave a state.

    Raises:
        DataError: If none give it.
    """
    span: Span = records(tensors, device).read(Span, state, "nystrom")
    report = replace(span.report, pairs=span.report.pairs.cpu())
    return dict(vars(replace(span, report=report)))
