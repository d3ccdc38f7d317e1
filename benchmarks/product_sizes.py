"""What the contest of products measures, known before torch is imported."""

from __future__ import annotations

EXAMPLES = 1000
"""Training examples of a problem."""

STRATEGIES = ("explicit", "traced", "autodiff")
"""Of lapwing's products."""
