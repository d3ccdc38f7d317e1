"""One JSON file with the numbers, one HTML page made from it."""

from __future__ import annotations

from lapwing.ground.files.atomic import write_json
from lapwing.show.report.page import render, write_report

__all__ = ["render", "write_json", "write_report"]
