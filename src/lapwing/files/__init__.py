"""Files: there whole or not at all, sealed, and read by what they must hold."""

from __future__ import annotations

from lapwing.files.archive import Archive
from lapwing.files.inputs import inputs_from, inputs_state
from lapwing.files.records import INLINE, REPAIR, Families, Records, unlike
from lapwing.files.tensors import Json, Tensors
from lapwing.files.whole import check_directory, file_at, write_whole

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
