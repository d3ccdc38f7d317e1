"""Where expectation maximisation has come to, on disk: one safetensors file, replaced as a whole after every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from jaxtyping import Float
from torch import Tensor

from lapwing.ground.archive import Archive
from lapwing.ground.errors import MismatchError
from lapwing.ground.records import Records
from lapwing.ground.whole import check_directory
from lapwing.linear.problem import Perturbation
from lapwing.posteriors import Step

CHECKPOINT = Archive(
    "lapwing.em", "lapwing.em", 4, "EM(checkpoint=...)", "another checkpoint=, or deleting the file", oldest=4
)
"""The kind of file; its schema is raised whenever an older file would be misread."""


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
        settings: What the run depends on, by name: a file of other settings is refused.

    Raises:
        ConfigError: If its directory does not exist.
    """

    path: Path
    settings: Mapping[str, str]

    def __post_init__(self) -> None:
        check_directory(self.path)

    def write(self, state: State) -> None:
        """Put a state in place of the last one: whatever happens, the file holds one of the two, whole."""
        records = Records()
        header = {"settings": dict(self.settings), "state": records.state(state)}
        CHECKPOINT.write(self.path, header, records.tensors)

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
        header = CHECKPOINT.header(self.path)
        saved: dict[str, str] = Records().read(dict[str, str], header.get("settings"), "settings")
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
        records = Records(CHECKPOINT.tensors(self.path, header), like.device)
        return records.read(State, header.get("state"), "state")
