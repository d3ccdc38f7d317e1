"""Files: there whole or not at all, sealed, and read by what they must hold."""

from __future__ import annotations

from lapwing.ground.archive.archive import Archive, Json, Tensors
from lapwing.ground.archive.records import REPAIR, Families, Records
from lapwing.ground.archive.whole import check_directory, file_at, replacing, write_json, write_whole

__all__ = [
    "REPAIR",
    "Archive",
    "Families",
    "Json",
    "Records",
    "Tensors",
    "check_directory",
    "file_at",
    "replacing",
    "write_json",
    "write_whole",
]
