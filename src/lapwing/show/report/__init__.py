"""One JSON file with the numbers, one HTML page made from it."""

from __future__ import annotations

from lapwing.ground.files.atomic import write_json
from lapwing.show.report.health import Health, health
from lapwing.show.report.page import render, write_report

__all__ = ["Health", "health", "render", "write_json", "write_report"]
