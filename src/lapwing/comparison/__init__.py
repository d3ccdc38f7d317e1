"""Methods side by side: what each predicts, and what it costs."""

from __future__ import annotations

from lapwing.comparison.entries import Contender, Tuned, default_methods, recipes
from lapwing.comparison.examples import Examples
from lapwing.comparison.paired import Difference, paired
from lapwing.comparison.run import compare, likelihood_of, read_comparison
from lapwing.comparison.table import (
    COLUMNS,
    Column,
    Comparison,
    Row,
    alike,
    columns_with,
    joined_rows,
    networks_own,
    pooled,
    span,
)
from lapwing.evaluation.task import Entry, Task

__all__ = [
    "COLUMNS",
    "Column",
    "Comparison",
    "Contender",
    "Difference",
    "Entry",
    "Examples",
    "Row",
    "Task",
    "Tuned",
    "alike",
    "columns_with",
    "compare",
    "default_methods",
    "joined_rows",
    "likelihood_of",
    "networks_own",
    "paired",
    "pooled",
    "read_comparison",
    "recipes",
    "span",
]
