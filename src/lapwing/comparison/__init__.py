"""Methods side by side: what each predicts, and what it costs."""

from __future__ import annotations

from lapwing.comparison.run import compare, likelihood_of, recipes
from lapwing.comparison.table import COLUMNS, Column, Comparison, Row, pooled

__all__ = ["COLUMNS", "Column", "Comparison", "Row", "compare", "likelihood_of", "pooled", "recipes"]
