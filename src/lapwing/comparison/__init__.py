"""Methods side by side: what each predicts, and what it costs."""

from __future__ import annotations

from lapwing.comparison.columns import COLUMNS, Column
from lapwing.comparison.methods import likelihood_of, recipes
from lapwing.comparison.run import compare
from lapwing.comparison.table import Comparison, Row, pooled

__all__ = ["COLUMNS", "Column", "Comparison", "Row", "compare", "likelihood_of", "pooled", "recipes"]
