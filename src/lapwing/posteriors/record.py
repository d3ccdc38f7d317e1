"""What a file holds of the parts that all posteriors of a network have, and whether they belong together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lapwing.curvature.fold import Fingerprint, Totals
from lapwing.ground.errors import DataError
from lapwing.ground.files.archive import Json
from lapwing.ground.files.records import REPAIR, Records
from lapwing.jacobian.layers.capture import KINDS, Survey
from lapwing.jacobian.network.network import Network
from lapwing.likelihoods import Likelihood

AXES = 64
"""Most axes of a tensor."""

OUTPUTS = 2**40
"""Most outputs of one example."""

PARTS = tuple[Fingerprint, ...]
"""The chunks of ``Totals``; there may be many, so that a file has them as rows of one tensor."""


def totals_record(totals: Totals, records: Records) -> Json:
    """Sums over the data: one row a chunk, which may be many. ``examples`` and ``nll`` are there to be read."""
    rows = torch.tensor([astuple(part) for part in totals.parts], dtype=torch.float64).view(-1, 4)
    return {
        "examples": totals.examples,
        "nll": totals.nll,
        "parts": records.tensors.put("totals.parts", rows),
        **records.giving({PARTS: None}).state(totals, "totals"),
    }


def totals_of(record: Any, records: Records) -> Totals:
    """The sums of a record.

    Raises:
        DataError: If none give it.
    """
    fields = records.read(dict[str, Any], record, "totals")
    rows = records.read(Float[Tensor, "p 4"], fields.get("parts"), "totals.parts").nan_to_num().tolist()
    parts = tuple(Fingerprint(int(row[0]), *row[1:]) for row in rows)
    return records.giving({PARTS: parts}).read(Totals, fields, "totals")


def check_survey(survey: Survey, network: Network, likelihood: Likelihood) -> None:
    """Refuses a survey of another network, or of no network at all.

    Raises:
        DataError: Naming what differs.
    """
    names = [*(name for layer in survey.layers for name in layer.names), *survey.without_factors]
    if sorted(names) != sorted(network.names):
        raise DataError(f"a survey of {list(network.names)[:5]}", f"one of {names[:5]}", REPAIR)
    if not all(layer.kind in KINDS for layer in survey.layers):
        raise DataError(f"layers of kinds {', '.join(KINDS)}", f"{[layer.kind for layer in survey.layers]}", REPAIR)
    if not all(0 <= layer.axis < AXES for layer in survey.layers):
        raise DataError("an axis of the examples in every layer", f"{[layer.axis for layer in survey.layers]}", REPAIR)
    if min((*survey.output, *survey.floats, survey.matrix), default=0) < 0 or math.prod(survey.output) > OUTPUTS:
        raise DataError("sizes of outputs and activations", f"{list(survey.output)}, {survey.floats}", REPAIR)
    if len(survey.output) != likelihood.event_dim + 1:
        raise DataError(
            f"outputs of {likelihood.event_dim + 1} axes an example, as {likelihood} has them",
            f"shape {list(survey.output)}",
            REPAIR,
        )


def check_part_shape(what: str, shape: Sequence[int], expected: Sequence[int]) -> None:
    """Refuses a part of another shape than the rest asks for.

    Raises:
        DataError: Naming the part.
    """
    if tuple(shape) != tuple(expected):
        raise DataError(f"{what} of shape {list(expected)}", f"{list(shape)}", REPAIR)
