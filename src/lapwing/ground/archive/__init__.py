"""Files: there whole or not at all, sealed, and read by what they must hold."""

from __future__ import annotations

from lapwing.ground.archive.archive import Archive
from lapwing.ground.archive.inputs import inputs_from, inputs_state
from lapwing.ground.archive.records import INLINE, REPAIR, Families, Records, unlike
from lapwing.ground.archive.tensors import Json, Tensors
from lapwing.ground.archive.whole import check_directory, file_at, write_whole

__all__ = [
    "INLINE",
    "REPAIR",
    "Archive",
    "Families",
    "Json",
    "Records",
    "Tensors",
    "check_directory",
    "file_at",
    "inputs_from",
    "inputs_state",
    "unlike",
    "write_whole",
]
