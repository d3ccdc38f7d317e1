"""Where a long run has come to, on disk: one file, replaced as a whole, and refused to any other run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, final

import torch

from lapwing.ground.errors import MismatchError
from lapwing.ground.files.archive import Archive
from lapwing.ground.files.atomic import check_directory
from lapwing.ground.files.records import Records

S = TypeVar("S")


@final
@dataclass(frozen=True)
class Checkpoint(Generic[S]):
    """A file that holds the state of one run.

    Args:
        archive: The kind of file.
        kind: The record that a state is.
        path: The file.
        settings: What the run depends on, by name: a file of other settings is refused.

    Raises:
        ConfigError: If its directory does not exist.
    """

    archive: Archive
    kind: type[S]
    path: Path
    settings: Mapping[str, str]

    def __post_init__(self) -> None:
        check_directory(self.path)

    def write(self, state: S) -> None:
        """Put a state in place of the last one: whatever happens, the file holds one of the two, whole."""
        records = Records()
        header = {"settings": dict(self.settings), "state": records.state(state)}
        self.archive.write(self.path, header, records.tensors)

    def read(self, device: torch.device) -> S | None:
        """The state to go on from, on a device; ``None`` where there is no file yet.

        Raises:
            DataError: If the file is damaged, or no checkpoint.
            MismatchError: If it belongs to another run.
        """
        if not self.path.exists():
            return None
        header = self.archive.header(self.path)
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
        read: Any = Records(self.archive.tensors(self.path, header), device).read
        return read(self.kind, header.get("state"), "state")
