"""One JSON file with the numbers, one HTML page made from it."""

from __future__ import annotations

from lapwing.ground.files.atomic import write_json
from lapwing.show.report.comparison import comparison_page, write_comparison
from lapwing.show.report.health import Health, health
from lapwing.show.report.page import render, write_report

__all__ = ["Health", "comparison_page", "health", "render", "write_comparison", "write_json", "write_report"]
