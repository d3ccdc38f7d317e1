"""Methods side by side: what each predicts, and what it costs."""

from __future__ import annotations

from lapwing.compare.columns import COLUMNS, Column
from lapwing.compare.methods import likelihood_of, recipes
from lapwing.compare.run import compare
from lapwing.compare.table import Comparison, Row, pooled

__all__ = ["COLUMNS", "Column", "Comparison", "Row", "compare", "likelihood_of", "pooled", "recipes"]
