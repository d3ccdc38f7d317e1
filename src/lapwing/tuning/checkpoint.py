"""Where expectation maximisation has come to, on disk: one safetensors file, replaced as a whole after every step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lapwing.errors import DataError, MismatchError
from lapwing.files import check_directory, write_whole
from lapwing.posteriors import Step
from lapwing.problem import Perturbation

KEY = "lapwing.em"
"""The metadata key of the header."""

SCHEMA = 3
"""Version of the layout: raised whenever an older file would be misread."""

NUMBERS = ("log_marginal", "noise_precision", "effective_dimension", "effective_dimension_error", "mode_nll")
"""Numbers of a step that a row of the file holds; NaN for those there are not."""

Settings: TypeAlias = Mapping[str, str]
"""What a run depends on, by name."""


@final
@dataclass(frozen=True, eq=False)
class State:
    """Where expectation maximisation has come to.

    Args:
        precisions: Prior precisions of the next expectation.
        scale: Its relative noise precision.
        trace: Steps so far.
        measured: Prior precisions, then the relative noise precision, of the last of them.
        moves: How far it led to moving the log precisions, the noise's last.
        settled: Whether no more is needed.
        weights: The last mode w*.
        noise: The noise of the draws; ``None`` where there are none.
        draws: The last draws, in units in which the prior is standard normal.
    """

    precisions: Float[Tensor, " g"]
    scale: Float[Tensor, ""]
    trace: tuple[Step, ...] = ()
    measured: Float[Tensor, " m"] | None = None
    moves: Float[Tensor, " m"] | None = None
    settled: bool = False
    weights: Float[Tensor, " d"] | None = None
    noise: Perturbation | None = None
    draws: Float[Tensor, "d k"] | None = None


@final
@dataclass(frozen=True)
class Checkpoint:
    """A file that holds the state of one run.

    Args:
        path: The file.
        settings: What the run depends on: a file of other settings is refused.

    Raises:
        ConfigError: If its directory does not exist.
    """

    path: Path
    settings: Settings

    def __post_init__(self) -> None:
        check_directory(self.path)

    def write(self, state: State) -> None:
        """Put a state in place of the last one: whatever happens, the file holds one of the two, whole."""
        header = {"schema": SCHEMA, "settings": dict(self.settings), "settled": state.settled}
        write_whole(self.path, _tensors(state), {KEY: json.dumps(header)})

    def read(self, like: Tensor) -> State | None:
        """The state to go on from; ``None`` where there is no file yet.

        Args:
            like: Tensor whose device the tensors of the state take.

        Raises:
            DataError: If the file is damaged, or no checkpoint.
            MismatchError: If it belongs to another run.
        """
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                metadata = file.metadata() or {}
                named = {name: file.get_tensor(name).clone().to(like.device) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise self._unusable(f"cut short, or no safetensors file ({error})") from error
        if KEY not in metadata:
            raise self._unusable("a safetensors file of something else")
        header: dict[str, Any] = json.loads(metadata[KEY])
        if header["schema"] != SCHEMA:
            raise self._unusable(f"a checkpoint of schema {header['schema']}, where this lapwing has {SCHEMA}")
        self._check(header["settings"])
        return _state(named, header["settled"])

    def _check(self, saved: Settings) -> None:
        """Refuse the state of another run."""
        other = [name for name in self.settings if saved.get(name) != self.settings[name]]
        if other:
            then, now = (
                "; ".join(f"{name}: {it.get(name, 'unknown')}" for name in other) for it in (saved, self.settings)
            )
            raise MismatchError(
                f"a checkpoint of this run, with {now}",
                f"'{self.path}' of one with {then}",
                "the settings it was begun with, or another checkpoint=",
            )

    def _unusable(self, how: str) -> DataError:
        return DataError("a checkpoint of EM", f"'{self.path}', {how}", "another checkpoint=, or deleting the file")


def _tensors(state: State) -> dict[str, Tensor]:
    """What a state holds, by name."""
    norms = [step.mode_norms or () for step in state.trace]
    rows = [[_number(getattr(step, name)) for name in NUMBERS] for step in state.trace]
    held = {
        "precisions": state.precisions,
        "scale": state.scale,
        "measured": state.measured,
        "moves": state.moves,
        "weights": state.weights,
        "draws": state.draws,
        "noise.data": None if state.noise is None else state.noise.data,
        "noise.prior": None if state.noise is None else state.noise.prior,
        "trace.precisions": torch.tensor([step.prior_precision for step in state.trace], dtype=torch.float64),
        "trace.norms": torch.tensor(norms, dtype=torch.float64),
        "trace.numbers": torch.tensor(rows, dtype=torch.float64),
    }
    return {name: value.detach().cpu().contiguous().clone() for name, value in held.items() if value is not None}


def _state(named: dict[str, Tensor], settled: bool) -> State:
    """The state that gave the tensors."""
    numbers: list[dict[str, Any]] = [
        {name: None if math.isnan(value) else value for name, value in zip(NUMBERS, row, strict=True)}
        for row in named["trace.numbers"].tolist()
    ]
    trace = tuple(
        Step(prior_precision=tuple(precisions), mode_norms=tuple(norms), **row)
        for precisions, norms, row in zip(
            named["trace.precisions"].tolist(), named["trace.norms"].tolist(), numbers, strict=True
        )
    )
    noise = Perturbation(named["noise.data"], named["noise.prior"]) if "noise.data" in named else None
    return State(
        named["precisions"],
        named["scale"],
        trace,
        named["measured"],
        named.get("moves"),
        settled,
        named["weights"],
        noise,
        named.get("draws"),
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value
