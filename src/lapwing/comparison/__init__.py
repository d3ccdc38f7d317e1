"""Methods side by side: what each predicts, and what it costs."""

from __future__ import annotations

from lapwing.comparison.run import compare, likelihood_of, recipes
from lapwing.comparison.table import COLUMNS, Column, Comparison, Row, alike, networks_own, pooled, span

__all__ = [
    "COLUMNS",
    "Column",
    "Comparison",
    "Row",
    "alike",
    "compare",
    "likelihood_of",
    "networks_own",
    "pooled",
    "recipes",
    "span",
]
